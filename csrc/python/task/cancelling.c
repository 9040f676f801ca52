/* Slows down tasks that keep swallowing Cancelled: see cancelling.h. */
#include "python/task/cancelling.h"

#include "python/core/facade.h"
#include "python/core/thread.h"

/* A fiber or grain that catches Cancelled and goes on waiting would spin for
 * ever. After this many deliveries a warning names it, and each further
 * delivery is delayed. */
#define UNRESPONSIVE_AFTER 100 /* deliveries */
#define FIRST_DELAY 1000000    /* ns */
#define LONGEST_DELAY 100000000

/* Logs the warning. 0, or -1 with an exception that ends the program (Ctrl-C).
 */
static int
report_unresponsive(PfThread *t, PyObject *task)
{
    if (pf_facade.log_unresponsive == NULL) {
        return 0;
    }
    pf_thread_no_switch_begin(t, "while a fiber is reported");
    PyObject *logged = PyObject_CallOneArg(pf_facade.log_unresponsive, task);
    pf_thread_no_switch_end(t);
    if (logged == NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
        return -1;
    }
    if (logged == NULL) {
        PyErr_WriteUnraisable(task);
    }
    Py_XDECREF(logged);
    return 0;
}

int64_t
pf_cancelling_delay(PfThread *t, PfTaskObject *task)
{
    unsigned count = task->deliveries;
    if (count < PF_MOST_DELIVERIES) {
        task->deliveries++;
    }
    if (count < UNRESPONSIVE_AFTER) {
        return 0;
    }
    if (count == UNRESPONSIVE_AFTER &&
        report_unresponsive(t, (PyObject *)task) < 0) {
        return -1;
    }
    unsigned doublings = (count - UNRESPONSIVE_AFTER) / 3;
    int64_t delay = (int64_t)FIRST_DELAY << doublings;
    return delay < LONGEST_DELAY ? delay : LONGEST_DELAY;
}
