/* Points: places between two waits where a run under test may interrupt a
 * fiber, as the system may interrupt a thread.
 *
 * The interpreter reports lines, instructions, jumps, calls and beginnings of
 * functions to callbacks of a PointsObject: from 3.12 on by sys.monitoring, on
 * 3.11 as a trace function.  pyfiber/testing/points.py reads each code object
 * once and says which of its places are points; all other places are disabled.
 *
 * A point belongs to a site (a line of the program, say), which has a number
 * from 1 and accesses names.  A name that one fiber writes and another one
 * reads or writes is hot, and so are its sites: races are likely there.  This
 * is learned as runs go by.
 *
 * Nothing is a point during an import, because a module that is half imported
 * belongs to the thread that imports it, or where the fiber must not be left.
 */
#ifndef PF_POINTS_H
#define PF_POINTS_H

#include "python/core/pyinclude.h"

#include "python/core/tstate.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct PfPointsObject PfPointsObject;
struct PfExplorer;

/* A run begins: which fiber has accessed what is forgotten; hot names stay. */
void pf_points_begin(PfPointsObject *points);

/* The interpreter has reached a line, or the instruction at an offset. 0, -1
 * with an exception, or PF_NO_POINT. */
#define PF_NO_POINT 1
int pf_points_pass(PfPointsObject *points, PyObject *code, uint32_t key,
                   bool is_line);
/* Are instructions of this code object points? */
bool pf_points_has_offsets(PfPointsObject *points, PyObject *code);
/* Does the second site write a name that the first one accesses? */
bool pf_points_conflict(const PfPointsObject *points, uint32_t site,
                        uint32_t writer);
/* The running fiber is about to use a lock, a queue, ...: in code with points
 * this is a point without a site. 0, or -1 with an exception. */
int pf_points_operation(const PfPointsObject *points, struct PfExplorer *x);
/* Are only jumps, calls and beginnings points (switch="gil")? */
bool pf_points_gil(const PfPointsObject *points);

/* The module's function _importing(fn, *args): calls fn(*args), in which
 * nothing is a point for the running fiber. */
PyObject *pf_points_importing(PyObject *module, PyObject *const *args,
                              Py_ssize_t nargs);

extern PyTypeObject *pf_points_type;

/* --- line_trace.c --- */
#if PF_TRACES_POINTS
/* Around a run: traces the thread, behind the trace and profile functions that
 * it has. 0, or -1 with an exception. */
int pf_line_trace_begin(PfPointsObject *points);
void pf_line_trace_end(void);
int pf_line_trace_own(void); /* 0, or -1 with an exception */
extern PyType_Spec pf_line_trace_spec;
extern PyTypeObject *pf_line_trace_type;
/* The module's functions _trace_replaced and _trace_object. */
PyObject *pf_line_trace_replaced(PyObject *module, PyObject *ignored);
PyObject *pf_line_trace_object(PyObject *module, PyObject *ignored);
#endif

#endif
