/* The rules by which `gemmule eval` judges an answer. tools/box/score.py has the same rules. */

#ifndef GM_EVAL_RULES_H
#define GM_EVAL_RULES_H

#include "cli/answer.h"

/* `check` is an object whose keys are rules, all of which must hold:
 *
 *     exact     [texts]  the trimmed answer is one of them
 *     contains  [texts]  the answer contains all of them; ASCII case is ignored
 *     number    n        the last whole number in the answer is n
 *     json      value    the answer is equal JSON
 *     calls     [{"name", "arguments"}]  exactly these functions are called, in this order
 *     thinks    true     the model thought first
 *     words     file     every word of the answer is in this file, one per line, or was said before; a single
 *                        letter counts as a word, and there is at least one word or digit
 *
 * Any other rule is GM_BAD_ARGUMENT. */
typedef struct {
    const char *set;  /* path of the set: files are looked up beside it */
    str         said; /* what the user and the tools have said so far */
} eval_context;

gm_status eval_passes(const json *check, const answer *a, const eval_context *context, bool *passed, error *e);

#endif
