/* The part of the grains that the loop and module.c use; see grain.h. */
#ifndef PF_GRAIN_LOOP_H
#define PF_GRAIN_LOOP_H

#include "python/core/parts.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"

extern const PfPart pf_grains_part;

void pf_grains_forget_waits(SchedulerObject *s);

extern PyType_Spec pf_grain_spec;
int pf_grain_module_init(PyObject *module);

#endif
