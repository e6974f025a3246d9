/* What `gemmule eval` asks of an answer. tools/box/score.py has the same rules. */

#ifndef GM_EVAL_RULES_H
#define GM_EVAL_RULES_H

#include "cli/answer.h"

/* `check` is an object whose keys are rules, all of which must hold:
 *
 *     exact     [texts]  the answer, without white space around it, is one of them
 *     contains  [texts]  each of them is in the answer; capitals of the Latin alphabet do not matter
 *     number    n        the last whole number in the answer is n
 *     json      value    the answer is JSON and means the same
 *     calls     [{"name", "arguments"}]  exactly these functions are called, in this order
 *     thinks    true     a thought came first
 *
 * A rule that is none of these is GM_BAD_ARGUMENT. */
gm_status eval_passes(const json *check, const answer *a, bool *passed, error *e);

#endif
