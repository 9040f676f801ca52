/* Where the engine's own tests may hold a thread still: between two steps of
 * which another thread's may come in between.  Nothing at all in other builds.
 */
#ifndef PF_TESTPOINTS_H
#define PF_TESTPOINTS_H

#if defined(PF_TEST_POINTS)

extern void (*pf_test_point)(void); /* NULL: go on; tests/c defines it */

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
