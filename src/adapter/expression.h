/* Regular expressions of adapter configurations, in Python's notation: target_modules, rank_pattern, alpha_pattern.
 *
 * Whole texts are matched, so greedy and lazy are the same. Known: . [] \d \w \s \b and their opposites, groups, |, * + ? {m,n},
 * ^ $, and lookahead. Anything else is refused, not guessed. Time is bounded by the lengths of text and expression. */

#ifndef GM_EXPRESSION_H
#define GM_EXPRESSION_H

#include "base/base.h"

/* Whether the expression matches the whole text. */
gm_status expression_match(str expression, str text, bool *out, error *e);

#endif
