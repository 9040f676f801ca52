/* The parking lot: see lot.h. */
#include "python/patch/lot.h"

#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/tstate.h"
#include "python/io/waiting.h"
#include "python/patch/methods.h"
#include "python/switch/locals.h"
#include "python/task/deadline.h"
#include "python/wait/in_line.h"
#include "python/waitq/owner.h"

/* ----------------------------------------------------------------- the table */

typedef struct Lot {
    PfTable table;
    PfLotEntry *spare; /* freed entries; each RLock a fiber takes needs one */
    size_t spare_count;
    PfSlot *holdings; /* one slot for each fiber that has held something */
} Lot;

/* constant after import; what it points to is guarded by the GIL */
static Lot *lot;
size_t pf_lot_busy; /* shared, one word, used with the GIL */

#define MOST_SPARE 64

static size_t
busier_by(size_t n)
{
    pf_lot_busy += n;
    return pf_lot_busy;
}

bool
pf_lot_is_ours(void)
{
    return PyInterpreterState_Get() == PyInterpreterState_Main();
}

PfLotEntry *
pf_lot_find(PyObject *object)
{
    return pf_lot_is_ours() ? (PfLotEntry *)pf_table_find(&lot->table, object)
                            : NULL;
}

static PfLotEntry *
allocate(void)
{
    PfLotEntry *entry = lot->spare;
    if (entry != NULL) {
        lot->spare = entry->held;
        lot->spare_count--;
        return entry;
    }
    entry = PyMem_Malloc(sizeof *entry);
    if (entry == NULL) {
        PyErr_NoMemory();
    }
    return entry;
}

PfLotEntry *
pf_lot_entry(PyObject *object)
{
    PfLotEntry *entry = pf_lot_find(object);
    if (entry != NULL) {
        return entry;
    }
    entry = allocate();
    if (entry == NULL) {
        return NULL;
    }
    *entry = (PfLotEntry){.item = {.object = object}};
    pf_table_add(&lot->table, &entry->item);
    busier_by(1);
    return entry;
}

static bool
is_needed(const PfLotEntry *entry)
{
    return !pf_waitq_empty(&entry->waiters) || entry->coming > 0 ||
           entry->depth > 0;
}

static void
less_busy(void)
{
    if (busier_by((size_t)-1) == 0) {
        pf_methods_settle();
    }
}

static void
free_entry(PfLotEntry *entry)
{
    pf_table_remove(&lot->table, &entry->item);
    less_busy();
    if (lot->spare_count == MOST_SPARE) {
        PyMem_Free(entry);
        return;
    }
    entry->held = lot->spare;
    lot->spare = entry;
    lot->spare_count++;
}

void
pf_lot_tidy(PyObject *object)
{
    PfLotEntry *entry = lot->table.count == 0 ? NULL : pf_lot_find(object);
    if (entry != NULL && !is_needed(entry)) {
        free_entry(entry);
    }
}

/* ------------------------------------------------------------- wait and wake */

PfThread *
pf_lot_parks_slow(PfThread *t)
{
    return pf_io_scheduler(t) == NULL || !pf_lot_is_ours() ? NULL : t;
}

/* The queue is not empty. */
static void
wake_first(PfLotEntry *entry)
{
    PfNode *node = pf_waitq_choose(&entry->waiters);
    assert(node != NULL);
    entry->coming++;
    entry->heir = pf_waitq_fiber(node->waiter)->thread;
    pf_waitq_grant(node);
}

void
pf_lot_wake_slow(PyObject *object)
{
    PfLotEntry *entry = pf_lot_find(object);
    if (entry != NULL && !pf_waitq_empty(&entry->waiters)) {
        wake_first(entry);
    }
}

void
pf_lot_wake_all(PyObject *object)
{
    PfLotEntry *entry = pf_lot_find(object);
    while (entry != NULL && !pf_waitq_empty(&entry->waiters)) {
        wake_first(entry);
    }
}

/* A woken fiber runs.  (The fiber may not be counted: after a fork all counts
 * are 0, as the first waiters have been woken once more.) */
static void
has_come(PyObject *object)
{
    PfLotEntry *entry = pf_lot_find(object);
    if (entry != NULL && entry->coming > 0 && --entry->coming == 0) {
        entry->heir = NULL;
    }
}

/* Waits once for a wake-up.  Returns what pf_wait_in_line() returns. */
static int
wait_once(PyObject *object, PfThread *t, int64_t deadline, bool shielded,
          bool as_first)
{
    PfLotEntry *entry = pf_lot_entry(object);
    if (entry == NULL) {
        return -1;
    }
    PfWait *wait = pf_wait_new(t, NULL);
    if (wait == NULL) {
        return -1;
    }
    wait->waiter.shielded = shielded;
    pf_wait_begin(&wait->waiter, t);
    (as_first ? pf_waitq_push_first : pf_waitq_push)(&entry->waiters,
                                                     &wait->node);
    bool before = pf_io_patched_begin(t, true);
    int rc = pf_wait_in_line(&wait->waiter, t, deadline, object);
    pf_io_patched_end(t, before);
    bool woken = PF_SHARED_GET(&wait->waiter.taken) != NULL;
    pf_wait_free(t, wait);
    if (woken) {
        has_come(object);
        if (rc < 0) {
            pf_lot_wake(object);
        }
    }
    return rc;
}

/* Has a fiber of this thread been woken that has not looked yet? */
static bool
is_promised(PyObject *object, const PfThread *t)
{
    PfLotEntry *entry = !pf_lot_is_busy() ? NULL : pf_lot_find(object);
    return entry != NULL && entry->heir == t;
}

int
pf_lot_until(PyObject *object, PfThread *t, int64_t deadline, bool shielded,
             PfLook look, void *data)
{
    bool woken = false;
    bool promised = deadline != PF_NOW && is_promised(object, t) &&
                    !CURRENT(t)->dying; /* for it nothing else runs */
    for (;;) {
        int rc = promised ? 0 : look(object, t, data);
        if (rc != 0) {
            if (rc < 0 && woken) {
                pf_lot_wake(object);
            }
            pf_lot_tidy(object);
            return rc < 0 ? -1 : 0;
        }
        rc = deadline == PF_NOW
                 ? 1
                 : wait_once(object, t, deadline, shielded, woken);
        if (rc != 0) {
            pf_lot_tidy(object);
            return rc;
        }
        woken = true;
        promised = false;
    }
}

/* -------------------------------------------------------- what a fiber holds */

/* What one fiber holds; in a slot that is freed when the fiber ends. */
typedef struct HoldingsObject {
    PyObject_HEAD
    PfLotEntry *first;
    PyObject *lost; /* a list of locks that the fiber has lost, or NULL */
} HoldingsObject;

static PyTypeObject *holdings_type; /* constant after import */

static HoldingsObject *
holdings_of(FiberObject *fiber)
{
    PfSlot *slot = pf_locals_find(&lot->holdings, fiber);
    return slot == NULL ? NULL : (HoldingsObject *)slot->dict;
}

static HoldingsObject *
make_holdings(FiberObject *fiber)
{
    HoldingsObject *made = holdings_of(fiber);
    if (made == NULL) {
        made = PyObject_New(HoldingsObject, holdings_type);
        if (made != NULL) {
            made->first = NULL;
            made->lost = NULL;
        }
        if (pf_locals_add(&lot->holdings, fiber, (PyObject *)made) == NULL) {
            return NULL;
        }
    }
    return made;
}

int
pf_lot_may_hold(FiberObject *fiber)
{
    return make_holdings(fiber) == NULL ? -1 : 0;
}

void
pf_lot_hold(PfLotEntry *entry, FiberObject *fiber, Py_ssize_t depth,
            bool owned)
{
    HoldingsObject *holdings = holdings_of(fiber);
    assert(holdings != NULL && entry->depth == 0);
    entry->owner = pf_owner(fiber);
    entry->depth = depth;
    entry->held = holdings->first;
    entry->owned = owned;
    holdings->first = entry;
}

static void
forget_owner(PfLotEntry *entry)
{
    entry->depth = 0;
    entry->owner = (PfOwner){NULL, 0};
    entry->held = NULL;
    entry->ended = false;
}

/* (An owner without holdings is just ending: holdings_dealloc() ends its holds
 * one by one.) */
void
pf_lot_let_go(PfLotEntry *entry)
{
    if (!entry->ended) {
        HoldingsObject *holdings = holdings_of(entry->owner.fiber);
        if (holdings == NULL) {
            return;
        }
        PfLotEntry **link = &holdings->first;
        while (*link != entry) {
            link = &(*link)->held;
        }
        *link = entry->held;
    }
    forget_owner(entry);
    pf_lot_tidy(entry->item.object);
}

void
pf_lot_gone(PyObject *object)
{
    PfLotEntry *entry = pf_lot_held(object);
    if (entry != NULL) {
        pf_lot_let_go(entry);
    }
}

void
pf_lot_lose(PyObject *lock, FiberObject *fiber)
{
    HoldingsObject *holdings = make_holdings(fiber);
    if (holdings != NULL && holdings->lost == NULL) {
        holdings->lost = PyList_New(0);
        busier_by(holdings->lost != NULL);
    }
    if (holdings == NULL || holdings->lost == NULL ||
        PyList_Append(holdings->lost, lock) < 0) {
        PyErr_Clear();
    }
}

bool
pf_lot_lost_slow(PyObject *lock)
{
    HoldingsObject *holdings =
        pf_lot_is_ours() ? holdings_of(CURRENT(pf_thread_current)) : NULL;
    PyObject *lost = holdings == NULL ? NULL : holdings->lost;
    Py_ssize_t count = lost == NULL ? 0 : PyList_GET_SIZE(lost);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyList_GET_ITEM(lost, i) == lock) {
            return PyList_SetSlice(lost, i, i + 1, NULL) == 0;
        }
    }
    return false;
}

int
pf_lot_acquire(PyObject *lock, PfThread *t, int64_t deadline, PfLook look,
               void *data)
{
    if (pf_explore_preempt() < 0 || pf_lot_may_hold(CURRENT(t)) < 0) {
        return -1;
    }
    int rc = pf_lot_until(lock, t, deadline, false, look, data);
    return rc < 0 ? -1 : rc == 0;
}

int
pf_lot_retake(PyObject *lock, PfThread *t, PfLook look, void *data)
{
    FiberObject *fiber = CURRENT(t);
    int rc = pf_lot_may_hold(fiber);
    if (rc == 0 && fiber->dying) {
        rc = look(lock, t, data);
        pf_lot_tidy(lock);
    } else if (rc == 0) {
        rc = pf_lot_until(lock, t, PF_NEVER, true, look, data) < 0 ? -1 : 1;
    }
    if (rc <= 0) {
        PyObject *raised = pystate_take_exception();
        pf_lot_lose(lock, fiber);
        pystate_restore_exception(raised);
    }
    return rc;
}

/* The fiber has ended.  An RLock that it owned belongs to the system's thread
 * from now on, as the lock itself sees it, so that thread's other fibers may
 * take it.  A fiber that was a thread of the program stays the owner. */
static void
holdings_dealloc(PyObject *op)
{
    HoldingsObject *self = (HoldingsObject *)op;
    while (self->first != NULL) {
        PfLotEntry *entry = self->first;
        self->first = entry->held;
        if (entry->owned && pf_fiber_kind(entry->owner.fiber)->is_thread) {
            entry->ended = true;
            entry->held = NULL;
            continue;
        }
        PyObject *object = entry->item.object;
        bool owned = entry->owned; /* a Lock stays locked */
        forget_owner(entry);
        if (owned) {
            pf_lot_wake(object);
        }
        pf_lot_tidy(object);
    }
    if (self->lost != NULL) {
        less_busy();
        Py_DECREF(self->lost);
    }
    PyTypeObject *type = Py_TYPE(op);
    PyObject_Free(op);
    Py_DECREF(type);
}

static PyType_Slot holdings_slots[] = {
    {Py_tp_doc, (void *)"The interpreter's locks that a fiber holds."},
    {Py_tp_dealloc, holdings_dealloc},
    {0, NULL},
};

static PyType_Spec holdings_spec = {
    .name = "pyfiber._engine._Holdings",
    .basicsize = sizeof(HoldingsObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = holdings_slots,
};

/* ------------------------------------------------------- what threads leave */

static void
pass_on(PfLotEntry *entry)
{
    entry->coming = 0;
    entry->heir = NULL;
    if (!pf_waitq_empty(&entry->waiters)) {
        wake_first(entry);
    }
}

/* Wakes other waiters in the place of the fibers that this thread, or before a
 * fork any thread, has woken and that will not look.  Also frees the empty
 * entries that waits of the thread have left. */
static void
sweep(const PfThread *gone)
{
    for (size_t i = 0; i < lot->table.chain_count; i++) {
        PfItem *next;
        for (PfItem *item = lot->table.chains[i]; item != NULL; item = next) {
            PfLotEntry *entry = (PfLotEntry *)item;
            next = item->next;
            if (gone == NULL ? entry->coming > 0 : entry->heir == gone) {
                pass_on(entry);
            }
            if (!is_needed(entry)) {
                free_entry(entry);
            }
        }
    }
}

static void
thread_lost(PfThread *t)
{
    sweep(t);
}

/* A fiber of this thread that was woken before the fork may look in vain, as
 * another one is woken in addition. */
static int
after_fork(PfThread *t)
{
    (void)t;
    sweep(NULL);
    return 0;
}

const PfPart pf_lot_part = {
    .thread_lost = thread_lost,
    .after_fork = after_fork,
};

/* ----------------------------------------------------------------- reports */

/* Returns a list of the fiber that holds the object, or an empty list. */
static PyObject *
lot_holders(PyObject *module, PyObject *object)
{
    (void)module;
    PfLotEntry *entry = pf_lot_held(object);
    PfOwner nobody = {NULL, 0};
    return pf_owner_list(entry != NULL ? &entry->owner : &nobody, 1);
}

static PyObject *
lot_lost_holder(PyObject *module, PyObject *object)
{
    (void)module;
    PfLotEntry *entry = pf_lot_find(object);
    PfOwner nobody = {NULL, 0};
    return pf_owner_gone(entry != NULL ? &entry->owner : &nobody);
}

static PyObject *
lot_waiters(PyObject *module, PyObject *object)
{
    (void)module;
    PfLotEntry *entry = pf_lot_find(object);
    PfWaitq nobody = {NULL};
    return pf_waitq_list(entry != NULL ? &entry->waiters : &nobody, NULL);
}

static PyObject *
lot_count(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromSize_t(pf_lot_busy);
}

static PyMethodDef functions[] = {
    {"_lot_holders", lot_holders, METH_O,
     "_lot_holders(lock, /)\n--\n\n"
     "The fiber that holds one of the interpreter's locks, in a list."},
    {"_lot_lost_holder", lot_lost_holder, METH_O,
     "_lot_lost_holder(lock, /)\n--\n\n"
     "The name of the thread that held the lock at its end, or None."},
    {"_lot_waiters", lot_waiters, METH_O,
     "_lot_waiters(object, /)\n--\n\n"
     "The fibers that wait for an object, in the order of its queue."},
    {"_lot_count", lot_count, METH_NOARGS,
     "_lot_count()\n--\n\n"
     "How many of the interpreter's objects are waited for or held by a "
     "fiber."},
    {NULL, NULL, 0, NULL},
};

int
pf_lot_init(PyObject *module)
{
    lot = PyMem_Calloc(1, sizeof *lot);
    if (lot == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    pf_table_init(&lot->table);
    holdings_type = pf_arguments_add_type(module, &holdings_spec, NULL);
    return holdings_type == NULL ? -1
                                 : PyModule_AddFunctions(module, functions);
}
