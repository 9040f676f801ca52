/* PF_TEST_POINT(): a place where the engine's own tests may stop a thread,
 * between two steps of the code, to let another thread act.  Compiles to
 * nothing in other builds.
 */
#ifndef PF_TESTPOINTS_H
#define PF_TESTPOINTS_H

#if defined(PF_TEST_POINTS)

extern void (*pf_test_point)(void); /* NULL: do nothing; tests/c defines it */

#define PF_TEST_POINT()                                                       \
    do {                                                                      \
        if (pf_test_point != NULL) {                                          \
            pf_test_point();                                                  \
        }                                                                     \
    } while (0)

#else

#define PF_TEST_POINT() ((void)0)

#endif

#endif
