/* What the loop asks of the grains; see grain.h. */
#ifndef PF_GRAIN_LOOP_H
#define PF_GRAIN_LOOP_H

#include "python/fiber/fiber.h"
#include "python/fiber/hub.h"

bool pf_grains_ask_again(SchedulerObject *s);
void pf_grains_stir(SchedulerObject *s);
void pf_grains_cancel_all(SchedulerObject *s, PyObject *why);
bool pf_grains_abandon(SchedulerObject *s);
int pf_grains_list(SchedulerObject *s, PyObject *list);
bool pf_grains_are_left(SchedulerObject *s); /* not over */
int pf_grains_traverse(SchedulerObject *s, visitproc visit, void *arg);
void pf_grains_free(SchedulerObject *s);
bool pf_is_idle_runner(FiberObject *fiber);

void pf_grains_forget_waits(SchedulerObject *s);

extern PyType_Spec pf_grain_spec;
int pf_grain_module_init(PyObject *module);

#endif
