/* Opens GPU engines without their self-check, for tests of other things: it takes nearly all the time of an opening.
 * tests/test_gpu_self_check.c and test_gpu_auto.c test it. The linker puts these functions in front of the engine's own. */

#include "quick_gpu.h"

#include "session/load.h"

gm_status __real_engine_check_new(gm_engine *engine, self_check **out, error *e);
gm_status __real_engine_check_kv(gm_engine *engine, quant_type kv, error *e);
gm_status __real_self_check_step(self_check *c, error *e);
gm_status __wrap_engine_check_new(gm_engine *engine, self_check **out, error *e);
gm_status __wrap_engine_check_kv(gm_engine *engine, quant_type kv, error *e);
gm_status __wrap_self_check_step(self_check *c, error *e);

bool quick_gpu_checks;

gm_status __wrap_engine_check_new(gm_engine *engine, self_check **out, error *e) {
    *out = NULL;
    return quick_gpu_checks ? __real_engine_check_new(engine, out, e) : GM_OK;
}

gm_status __wrap_engine_check_kv(gm_engine *engine, quant_type kv, error *e) {
    return quick_gpu_checks ? __real_engine_check_kv(engine, kv, e) : GM_OK;
}

gm_status __wrap_self_check_step(self_check *c, error *e) { return c ? __real_self_check_step(c, e) : GM_OK; }
