/* CANVAS_HEAD on the CPU (graph.h): the head, its softmax, a draw and the expected embedding in one pass over the table. */

#ifndef GM_CPU_CANVAS_HEAD_H
#define GM_CPU_CANVAS_HEAD_H

#include "cpu/steps_parts.h"

size_t cpu_canvas_head_tasks(const cpu_step *s, const cpu_context *c);
void   cpu_canvas_head_run(const cpu_step *s, const cpu_context *c, size_t task, void *scratch);

#endif
