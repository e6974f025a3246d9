#include "cpu/backend.h"

#include <stdlib.h>
#include <string.h>

gm_status cpu_backend_open(cpu_backend *b, const char *instructions, size_t threads, bool precise, error *e) {
    *b = (cpu_backend){ .precise = precise };
    b->kernels = instructions ? cpu_kernels_by_name(instructions) : cpu_kernels_best();
    if (!b->kernels) {
        char                      there[120] = "";
        const cpu_kernels *const *list;
        const size_t              n = cpu_kernels_available(&list);
        for (size_t i = 0; i < n; i++) {
            if (strlen(there) + strlen(list[i]->name) + 3 > sizeof there) break;
            strcat(strcat(there, i ? ", " : ""), list[i]->name);
        }
        return fail(e, GM_BAD_ARGUMENT, "this machine cannot run the instruction set '%s'; it has %s", instructions,
                    there);
    }
    TRY(pool_new(threads ? threads : physical_cores(), &b->threads, e));
    const size_t bytes = (size_t)THREAD_SCRATCH * pool_threads(b->threads);
    b->scratch = aligned_alloc(64, bytes);
    if (!b->scratch) {
        cpu_backend_close(b);
        return fail_memory(e, "the threads' scratch memory", bytes);
    }
    return GM_OK;
}

void cpu_backend_close(cpu_backend *b) {
    if (b->threads) pool_free(b->threads);
    free(b->scratch);
    *b = (cpu_backend){ 0 };
}
