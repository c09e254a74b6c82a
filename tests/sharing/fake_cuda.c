/* FAKE libcuda.so.1: cuInit does what the variable FAKE_CUDA says and touches nothing. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cuInit(unsigned int flags) {
    const char *wanted = getenv("FAKE_CUDA");
    (void)flags;
    if (wanted && strcmp(wanted, "hang") == 0)
        for (;;)
            pause();
    return wanted ? atoi(wanted) : 0;
}
