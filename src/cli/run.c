/* gemmule run: answers one prompt. */

#include "cli/answer.h"
#include "cli/canvas_screen.h"
#include "cli/cli.h"
#include "cli/engine_arguments.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/run_prompts.h"
#include "cli/terminal.h"
#include "cli/video_input.h"

#include "base/clock.h"
#include "model/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    engine_values   engine;
    sampling_values sampling;
    const char     *file, *system, *tools, *prompts, *out, *canvas;
    count_value     max, context, logprobs, parallel, steps;
    texts_value     stop, images, sounds, videos;
    video_values    video;
    bool            think, raw, json, quiet;
} run_values;

static const option prompt_options[] = {
    TEXTS_OPTION(run_values, images, "image", 0, "FILE",
                 "a picture (PNG, JPEG, GIF, WebP) before the prompt; can be repeated"),
    TEXTS_OPTION(run_values, sounds, "audio", 0, "FILE",
                 "a sound (WAV, FLAC, MP3, Ogg, …) before the prompt; can be repeated"),
    TEXTS_OPTION(
        run_values, videos, "video", 0, "PATH",
        "a video before the prompt: a folder of frames, or a file (MP4, WebM, …) if ffmpeg is installed; can be "
        "repeated"),
    TEXT_OPTION(run_values, file, "file", 'f', "FILE",
                "read the prompt from FILE; if PROMPT is given as well, FILE follows it"),
    TEXT_OPTION(run_values, system, "system", 0, "TEXT",
                "system prompt, \"\" for none; default: the Ollama model's, if it has one"),
    TEXT_OPTION(
        run_values, tools, "tools", 0, "FILE",
        "functions that the model may call, as a JSON list in OpenAI's form; calls are printed as JSON, one per line"),
    FLAG_OPTION(run_values, raw, "raw", 0,
                "continue the text as it is, without the chat format; special tokens in it are recognised"),
};
static const option prompts_choices[] = {
    TEXT_OPTION(run_values, prompts, "prompts", 0, "FILE",
                "answer a file of prompts: each line is a JSON object with \"prompt\" or \"messages\", and settings"),
    TEXT_OPTION(
        run_values, out, "out", 0, "FILE",
        "file for the answers, a line of JSON each, in the order of the prompts; answers that it already has are kept"),
    COUNT_OPTION(run_values, parallel, "parallel", 0, "N", 1, 32, "with --prompts: how many at once; default 4"),
};
static const option answer_options[] = {
    COUNT_OPTION(run_values, max, "max", 0, "N", 1, UINT32_MAX,
                 "at most N tokens; default: the Ollama model's num_predict, or as many as fit in the context"),
    TEXTS_OPTION(run_values, stop, "stop", 0, "TEXT",
                 "end the answer before TEXT; can be repeated; default: the Ollama model's"),
    FLAG_OPTION(run_values, think, "think", 0,
                "let the model think first, and show its thoughts: dimmed on a terminal, else on stderr"),
    FLAG_OPTION(run_values, json, "json", 0,
                "print one JSON object: content, thinking, tool_calls, usage, timings, seed, finish_reason"),
    COUNT_OPTION(run_values, logprobs, "logprobs", 0, "N", 0, 20,
                 "with --json: the log-probability of each token and of the N likeliest alternatives"),
    TEXT_OPTION(run_values, canvas, "canvas", 0, "FILE",
                "diffusion models: how the answer begins; its text stays, [[12]] is a hole of 12 tokens to fill, and "
                "[[=text]] is text to start from"),
    COUNT_OPTION(run_values, steps, "steps", 0, "N", 1, CANVAS_MOST_STEPS,
                 "diffusion models: at most N steps for a block; default: the model's"),
    FLAG_OPTION(run_values, quiet, "quiet", 0, "no progress bar, and no canvas while it settles"),
};
static const option context_options[] = {
    COUNT_OPTION(run_values, context, "ctx", 0, "N", 1, UINT32_MAX,
                 "context size in tokens, for prompt and answer; default: the Ollama model's num_ctx, or 8192, or the "
                 "model's limit if that is smaller"),
};
static const option_group groups[] = {
    OPTION_GROUP("prompt", prompt_options, 0),      OPTION_GROUP("prompts", prompts_choices, 0),
    OPTION_GROUP("answer", answer_options, 0),      VIDEO_GROUP(offsetof(run_values, video)),
    SAMPLING_GROUP(offsetof(run_values, sampling)), ADAPTER_GROUP(offsetof(run_values, engine)),
    ENGINE_GROUP(offsetof(run_values, engine)),     OPTION_GROUP("context", context_options, 0),
};

/* Everything a run owns. */
typedef struct {
    arena          memory;
    model_argument model;
    buffer         prompt, tools, canvas;
    gm_part       *parts; /* pictures, sounds, videos and the prompt; NULL: only the prompt */
    size_t         part_count;
    video_input   *videos;
    size_t         video_count;
    int32_t       *tokens;
    gm_engine     *engine;
    gm_session    *session;
    gm_reply      *reply;
    gm_sampling    sampling;
    answer         answer;
    double         load_seconds;
} run_state;

static void run_free(run_state *r) {
    interrupt_watch(NULL);
    answer_free(&r->answer);
    gm_reply_free(r->reply);
    gm_session_free(r->session);
    gm_engine_close(r->engine);
    free(r->tokens);
    for (size_t i = 0; i < r->video_count; i++) video_input_free(&r->videos[i]);
    buffer_free(&r->prompt);
    buffer_free(&r->tools);
    buffer_free(&r->canvas);
    arena_free(&r->memory);
}

/* The prompt's tokens, starting with exactly one BOS whether or not the text has it. */
static gm_status raw_tokens(run_state *r, size_t *count, error *e) {
    static const char bos[] = "<bos>";
    buffer            text = { 0 };
    char              why[sizeof e->why] = "";
    if (!str_starts_with(buffer_view(&r->prompt), bos)) buffer_text(&text, bos);
    buffer_str(&text, buffer_view(&r->prompt));
    gm_status status = text.failed ? fail_memory(e, "the prompt", text.length) : GM_OK;
    if (status == GM_OK) status = gm_tokenize(r->engine, text.data, text.length, true, NULL, 0, count, why, sizeof why);
    if (status == GM_OK && !(r->tokens = malloc((*count + 1) * sizeof *r->tokens))) {
        status = fail_memory(e, "the prompt", *count * sizeof *r->tokens);
    }
    if (status == GM_OK)
        status = gm_tokenize(r->engine, text.data, text.length, true, r->tokens, *count, count, why, sizeof why);
    buffer_free(&text);
    return status == GM_OK ? GM_OK : fail(e, status, "%s", why);
}

static gm_status run_add_media(run_state *r, const texts_value *files, gm_part_kind kind, error *e) {
    for (size_t i = 0; i < files->count; i++) {
        buffer    bytes = { 0 };
        gm_part  *part = &r->parts[r->part_count++];
        gm_status status = input_read(files->items[i], &bytes, e);
        if (status == GM_OK) {
            *part =
                (gm_part){ .kind = kind, .data = arena_copy(&r->memory, buffer_view(&bytes)), .size = bytes.length };
            if (!part->data) status = fail_memory(e, "a picture or a sound", bytes.length);
        }
        buffer_free(&bytes);
        if (status != GM_OK) return status;
    }
    return GM_OK;
}

static gm_status run_add_videos(run_state *r, const run_values *v, error *e) {
    r->videos = arena_array(&r->memory, max_size(v->videos.count, 1), sizeof *r->videos);
    if (!r->videos) return fail_memory(e, "the videos", v->videos.count * sizeof *r->videos);
    for (size_t i = 0; i < v->videos.count; i++) {
        video_input *video = &r->videos[r->video_count++];
        *video = (video_input){ 0 };
        TRY(video_input_read(v->videos.items[i], &v->video, video, e));
        r->parts[r->part_count++] =
            (gm_part){ .kind = GM_PART_VIDEO, .frames = video->frames, .frame_count = video->count };
    }
    return GM_OK;
}

/* Media come before the text: Gemma 4 was trained that way. */
static gm_status run_read_media(run_state *r, const run_values *v, error *e) {
    const size_t count = v->images.count + v->sounds.count + v->videos.count;
    if (!count) return GM_OK;
    r->parts = arena_array(&r->memory, count + 1, sizeof *r->parts);
    if (!r->parts) return fail_memory(e, "the prompt", count * sizeof *r->parts);
    gm_status status = run_add_media(r, &v->images, GM_PART_IMAGE, e);
    if (status == GM_OK) status = run_add_media(r, &v->sounds, GM_PART_AUDIO, e);
    if (status == GM_OK) status = run_add_videos(r, v, e);
    r->parts[r->part_count++] = (gm_part){ .text = r->prompt.data };
    return status;
}

static bool run_shows_canvas(const run_state *r, const run_values *v) {
    return !v->json && !v->quiet && canvas_screen_wanted(r->engine);
}

static gm_status run_start_reply(run_state *r, const run_values *v, error *e) {
    const gm_reply_options options = {
        .sampling = &r->sampling,
        .tools = v->tools ? r->tools.data : NULL,
        .think = v->think,
        .max_tokens = (uint32_t)v->max.value,
        .stop = v->stop.items,
        .stop_count = v->stop.count,
        .logprobs = (uint32_t)v->logprobs.value,
        .want_logprobs = v->logprobs.given,
        .canvas = v->canvas ? r->canvas.data : NULL,
        .want_canvas = run_shows_canvas(r, v),
        .steps = (uint32_t)v->steps.value,
    };
    char      why[sizeof e->why] = "";
    gm_status status;
    if (v->raw) {
        size_t count = 0;
        if ((status = raw_tokens(r, &count, e)) != GM_OK) return status;
        status = gm_reply_start_tokens(r->session, r->tokens, count, &options, &r->reply, why, sizeof why);
    } else {
        const gm_message messages[2] = { { .role = "system", .content = v->system && *v->system ? v->system : NULL },
                                         { .role = "user",
                                           .content = r->parts ? NULL : r->prompt.data,
                                           .parts = r->parts,
                                           .part_count = r->part_count } };
        const bool       given = v->system != NULL;
        status = gm_reply_start(r->session, messages + !given, 1 + given, &options, &r->reply, why, sizeof why);
    }
    return status == GM_OK ? GM_OK : fail(e, status, "%s", why);
}

static gm_status run_open(run_state *r, const run_values *v, error *e) {
    const double start = clock_seconds();
    gm_status    status = engine_open(&v->engine, r->model.engine, !v->quiet && !v->json, &r->engine, e);
    if (status == GM_OK) status = session_open(&v->engine, r->engine, v->context.value, &r->session, e);
    if (status == GM_OK) status = sampling_choose(&v->sampling, r->engine, &r->sampling, e);
    r->load_seconds = clock_seconds() - start;
    if (status == GM_OK) interrupt_watch(r->session);
    if (status == GM_OK && interrupted()) status = fail(e, GM_CANCELLED, "interrupted");
    return status;
}

static double per_second(size_t tokens, double seconds) { return seconds > 0 ? (double)tokens / seconds : 0; }

static int run_print_json(const run_state *r, const run_values *v, const char *model) {
    const gm_reply_stats *stats = &r->answer.stats;
    report                j = { 0 };
    gm_engine_info        info;
    gm_engine_get_info(r->engine, &info);
    report_open(&j, NULL, '{');
    report_text(&j, "model", model);
    report_text(&j, "device", info.device);
    report_str(&j, "content", buffer_view(&r->answer.content));
    report_str(&j, "thinking", buffer_view(&r->answer.thinking));
    report_open(&j, "tool_calls", '[');
    if (r->answer.call_count) report_json(&j, NULL, buffer_view(&r->answer.calls));
    report_close(&j, ']');
    report_text(&j, "finish_reason", finish_name(stats->finish));
    report_count(&j, "seed", r->sampling.seed);
    report_open(&j, "usage", '{');
    report_count(&j, "prompt_tokens", stats->prompt_tokens);
    report_count(&j, "cached_tokens", stats->cached_tokens);
    report_count(&j, "completion_tokens", stats->reply_tokens);
    report_count(&j, "total_tokens", stats->prompt_tokens + stats->reply_tokens);
    report_close(&j, '}');
    report_open(&j, "timings", '{');
    report_number(&j, "load_seconds", r->load_seconds);
    report_number(&j, "prompt_seconds", stats->prompt_seconds);
    report_number(&j, "prompt_tokens_per_second",
                  per_second(stats->prompt_tokens - stats->cached_tokens, stats->prompt_seconds));
    report_number(&j, "reply_seconds", stats->reply_seconds);
    report_number(&j, "reply_tokens_per_second", per_second(stats->reply_tokens, stats->reply_seconds));
    report_close(&j, '}');
    if (stats->blocks) {
        report_open(&j, "diffusion", '{');
        report_count(&j, "blocks", stats->blocks);
        report_count(&j, "steps", stats->steps);
        report_close(&j, '}');
    }
    if (v->logprobs.given) {
        report_open(&j, "logprobs", '[');
        if (r->answer.logprobs.text.length) report_json(&j, NULL, buffer_view(&r->answer.logprobs.text));
        report_close(&j, ']');
    }
    report_close(&j, '}');
    return report_print(&j);
}

static gm_status answer_prompt(run_state *r, const run_values *v, error *e) {
    gm_status status = run_open(r, v, e);
    if (status == GM_OK) status = run_start_reply(r, v, e);
    if (status != GM_OK) return status;
    const answer_style style = {
        .stream = !v->json,
        .show_thinking = v->think,
        .progress = !v->json && !v->quiet,
        .logprobs_of = v->logprobs.given ? r->engine : NULL,
        .alternatives = (uint32_t)v->logprobs.value,
        .canvas_of = run_shows_canvas(r, v) ? r->engine : NULL,
    };
    return answer_collect(&r->answer, r->reply, &style, e);
}

/* What a file of prompts says line by line cannot be said for all of them. */
static int run_answer_file(const run_values *v, const arguments *args) {
    if (!v->prompts || !v->out) return complain_usage("run", "run: --prompts and --out must be used together");
    if (!strcmp(v->out, "-"))
        return complain_usage("run",
                              "run: --out needs a file, because answers that are there already are read from it");
    if (args->count > 1 || v->file || v->system || v->tools || v->raw || v->json || v->logprobs.given ||
        v->stop.count || v->images.count || v->sounds.count || v->videos.count || v->canvas || v->steps.given)
        return complain_usage("run",
                              "run: --prompts can be combined with sampling, --max, --think, --ctx, --parallel and "
                              "engine options; everything else is a setting of each line");
    return run_prompts(&(prompts_options){ .prompts = v->prompts,
                                           .out = v->out,
                                           .model = args->positional[0],
                                           .engine = &v->engine,
                                           .sampling = &v->sampling,
                                           .context = v->context.value,
                                           .most = (uint32_t)v->max.value,
                                           .parallel = v->parallel.given ? (size_t)v->parallel.value : 4,
                                           .think = v->think,
                                           .quiet = v->quiet });
}

static int run_run(void *values, const arguments *args) {
    const run_values *v = values;
    if (v->prompts || v->out) return run_answer_file(v, args);
    if (v->parallel.given) return complain_usage("run", "run: --parallel needs --prompts");
    const char *model = args->positional[0], *prompt = args->count > 1 ? args->positional[1] : NULL;
    run_state   r = { 0 };
    error       e = { 0 };
    int         code;
    if (v->logprobs.given && !v->json) return complain_usage("run", "run: --logprobs needs --json");
    if (v->raw && (v->system || v->tools || v->images.count || v->sounds.count || v->videos.count))
        return complain_usage("run",
                              "run: --raw cannot be combined with --system, --tools, --image, --audio or --video");

    interrupt_catch();
    gm_status status = model_argument_resolve(model, &r.memory, &r.model, &e);
    if (status == GM_OK) status = input_prompt(prompt, v->file, &r.prompt, &e);
    const bool nothing_given = status == GM_BAD_ARGUMENT && !prompt && !v->file && !r.prompt.length;
    if (status == GM_OK && !v->raw && !r.prompt.data[strspn(r.prompt.data, " \t\r\n")]) {
        status = fail(&e, GM_BAD_ARGUMENT, "the prompt is empty");
    }
    if (status == GM_OK && v->tools) status = input_text(v->tools, &r.tools, &e);
    if (status == GM_OK && v->canvas) status = input_text(v->canvas, &r.canvas, &e);
    if (status == GM_OK) status = run_read_media(&r, v, &e);
    if (status == GM_OK) status = answer_prompt(&r, v, &e);

    if (status == GM_OK) code = v->json ? run_print_json(&r, v, model) : EXIT_OK;
    else if (nothing_given) code = complain_usage("run", "run: %s", e.why);
    else code = complain_error(&e);
    if (status == GM_CANCELLED && v->json && r.reply) run_print_json(&r, v, model);
    run_free(&r);
    return code;
}

const command command_run = {
    .name = "run",
    .arguments = "MODEL [PROMPT|-]",
    .summary = "answer one prompt, or a file of them",
    .description =
        "Streams the answer, and nothing else, to standard output. Without PROMPT and -f, or with `-`, "
        "reads the prompt "
        "from standard input. The model thinks only with --think. Ctrl-C stops the answer and exits with "
        "130. If prompt "
        "and answer do not fit in the context, exits with 2. Text in the prompt is never read as control "
        "tokens, except "
        "with --raw. With --prompts, answers a file of prompts instead, several at once. If it is stopped, the same "
        "command continues where it left off, and asks again what ended in an error.",
    .examples = "  gemmule run gemma4:e2b \"Why is the sky blue?\"\n"
                "  git diff | gemmule run gemma4:e4b - --system \"Write a commit message for this change.\"\n"
                "  gemmule run model.gguf \"Summarise:\" -f paper.txt --max 300 --temp 0\n"
                "  gemmule run model.gguf \"Weather in Rome?\" --tools tools.json --json\n"
                "  gemmule run box \"What is in the picture?\" --image photo.jpg\n"
                "  gemmule run gemma4:e4b \"What happens?\" --video clip.mp4\n"
                "  gemmule run gemma4:e2b --prompts questions.jsonl --out answers.jsonl --parallel 8\n"
                "  gemmule run diffusion.gguf \"Write a poem.\" --canvas poem.txt --steps 16\n"
                "  gemmule run model.gguf --raw \"Once upon a time\" --seed 7 --max 50\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .fewest = 1,
    .most = 2,
    .values_size = sizeof(run_values),
    .run = run_run,
};
