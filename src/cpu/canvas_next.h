/* CANVAS_NEXT (graph.h): which positions of a canvas are accepted, what its next step denoises, and whether it is done. */

#ifndef GM_CPU_CANVAS_NEXT_H
#define GM_CPU_CANVAS_NEXT_H

#include "graph/graph.h"

enum { CANVAS_MOST = 1024 }; /* positions */

/* An entropy in the rule's units. */
uint32_t canvas_units(const canvas_rule *rule, float entropy);
/* Accepts positions in the order of their entropies, of equal ones the first, as long as those before add up to at most `bound`. */
void canvas_accept(const uint32_t *entropies, size_t n, uint32_t bound, bool *accepted);
/* A token that is as likely as any other, by the key and the draw of a position's settings. */
int32_t canvas_random_id(const canvas_rule *rule, const float *settings);
/* A step of one canvas of n positions: the ids are in the states. Returns whether the canvas is done. accepted: [n] or NULL. */
bool canvas_next(const canvas_rule *rule, size_t n, const float *findings, const float *settings, canvas_state *states,
                 bool *accepted);

#endif
