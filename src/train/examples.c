/* Conversations and text → sequences of tokens with weights.
 *
 * For each answer the prompt is rendered from the messages before it, as a session does when it is about to write that answer, and the
 * answer follows as the model writes it. Where the prompt of the next answer continues this sequence, both are one; where the model sees
 * the conversation differently by then (its thoughts are gone), the next answer begins a sequence of its own. */

#include "train/data_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- the list ---- */

static gm_status sequences_push(data_sequences *s, data_sequence item, arena *a, error *e) {
    if (s->count == s->capacity) {
        const size_t   capacity = 2 * s->capacity + 2;
        data_sequence *more = arena_array(a, capacity, sizeof *more);
        if (!more) return fail_memory(e, "an example", capacity * sizeof *more);
        if (s->count) memcpy(more, s->items, s->count * sizeof *more);
        s->items = more;
        s->capacity = capacity;
    }
    s->items[s->count++] = item;
    return GM_OK;
}

/* Ids and weights move to the arena. */
typedef struct {
    token_list  ids;
    uint8_t    *counts; /* for each token */
    size_t      capacity;
    data_media *media;
    size_t      media_count;
} sequence_draft;

static void draft_free(sequence_draft *d) {
    token_list_free(&d->ids);
    free(d->counts);
}

/* Marks the tokens that were added since the last call. */
static gm_status draft_mark(sequence_draft *d, size_t from, bool counts, error *e) {
    if (d->ids.failed) return fail_memory(e, "an example", d->ids.count * sizeof *d->ids.ids);
    if (d->ids.count > d->capacity) {
        const size_t capacity = max_size(d->ids.count, 2 * d->capacity);
        uint8_t     *more = realloc(d->counts, capacity);
        if (!more) return fail_memory(e, "an example", capacity);
        d->counts = more;
        d->capacity = capacity;
    }
    if (d->ids.count > from) memset(d->counts + from, counts, d->ids.count - from);
    return GM_OK;
}

/* Where it is cut: not inside a picture or a sound. */
static size_t draft_cut(const sequence_draft *d, size_t most) {
    if (!most || d->ids.count <= most) return d->ids.count;
    for (size_t i = 0; i < d->media_count; i++) {
        const data_media *m = &d->media[i];
        if (m->at - 1 < most && m->at + m->count + 1 > most) return m->at - 1;
    }
    return most;
}

static void draft_hash(const sequence_draft *d, const data_sequence *s, sha256 *out) {
    const uint64_t count = s->count;
    sha256_add(out, &count, sizeof count);
    sha256_add(out, d->ids.ids, s->count * sizeof *d->ids.ids);
    sha256_add(out, d->counts, s->count);
    for (size_t i = 0; i < s->media_count; i++) sha256_add(out, s->media[i].part.data, s->media[i].part.size);
}

static gm_status draft_keep(const sequence_draft *d, data_sequence *s, arena *a, error *e) {
    int32_t *ids = arena_array(a, s->count + 1, sizeof *ids);
    float   *weights = arena_array(a, s->count + 1, sizeof *weights);
    if (!ids || !weights) return fail_memory(e, "an example", s->count * sizeof *ids);
    memcpy(ids, d->ids.ids, s->count * sizeof *ids);
    for (size_t i = 0; i < s->count; i++) weights[i] = d->counts[i];
    s->ids = ids;
    s->weights = weights;
    return GM_OK;
}

static gm_status draft_finish(const sequence_draft *d, size_t most, data_sequences *out, arena *a, error *e) {
    const size_t  n = draft_cut(d, most);
    data_sequence s = { .count = n, .truncated = n < d->ids.count, .media = d->media };
    for (size_t i = 0; i < n; i++) s.counted += d->counts[i];
    while (s.media_count < d->media_count && d->media[s.media_count].at < n) s.media_count++;
    out->left_out += !s.counted;
    out->truncated += s.counted && s.truncated;
    if (!s.counted) return GM_OK;
    draft_hash(d, &s, &out->content);
    if (out->count >= out->first && out->count < out->end) TRY(draft_keep(d, &s, a, e));
    return sequences_push(out, s, a, e);
}

/* ---- conversations ---- */

typedef struct {
    const data_options *o;
    const data_talk    *talk;
    arena              *memory;
    data_sequences     *out;
    sequence_draft      draft;  /* the sequence so far; empty at first */
    arena               held;   /* of the pieces */
    chat_piece         *pieces; /* what the draft was made of: the last prompt and its answer */
    size_t              piece_count;
    bool                whole; /* the pieces as one text have the draft's tokens, and it ends with a special token */
} talk_state;

/* The messages of an answer: up to the one with calls, or the last of several in a row, which the template joins. */
static size_t answer_end(const chat *c, size_t first) {
    size_t end = first + 1;
    while (end < c->count && !c->messages[end - 1].call_count && c->messages[end].role == CHAT_ASSISTANT) end++;
    return end;
}

/* How many of the prompt's pieces are in the draft already: all of the draft's, or none. */
static size_t draft_shared(const talk_state *s, const chat_piece *pieces, size_t count) {
    if (!s->whole || s->piece_count > count) return 0;
    for (size_t i = 0; i < s->piece_count; i++) {
        const chat_piece *a = &s->pieces[i], *b = &pieces[i];
        if (a->scaffolding != b->scaffolding || a->media != b->media || !str_equal(a->text, b->text)) return 0;
    }
    return s->piece_count;
}

/* Appends the tokens of pieces. Soft tokens are counted from the start of the draft. */
static gm_status draft_add(talk_state *s, const chat_piece *pieces, size_t count, bool counts, error *e) {
    sequence_draft *d = &s->draft;
    token_list      ids = { 0 };
    data_media     *media = NULL, *all;
    size_t          media_count = 0;
    const size_t    from = d->ids.count;
    gm_status       status = chat_pieces_tokens(s->o->words, pieces, count, &ids, e);
    if (!status) status = data_media_expand(s->o, pieces, count, s->memory, &ids, &media, &media_count, e);
    if (!status && ids.failed) status = fail_memory(e, "an example", ids.count * sizeof *ids.ids);
    for (size_t i = 0; i < ids.count && !status; i++) token_list_add(&d->ids, ids.ids[i]);
    token_list_free(&ids);
    if (status) return status;
    if (media_count) {
        all = arena_array(s->memory, d->media_count + media_count, sizeof *all);
        if (!all) return fail_memory(e, "an example", media_count * sizeof *all);
        if (d->media_count) memcpy(all, d->media, d->media_count * sizeof *all);
        for (size_t i = 0; i < media_count; i++) {
            media[i].at += from;
            all[d->media_count++] = media[i];
        }
        d->media = all;
    }
    return draft_mark(d, from, counts, e);
}

/* Whether the end of the prompt and the beginning of the answer are the same tokens when they are one text: only newlines would join. */
static bool meets_cleanly(const chat_piece *prompt, const chat_piece *answer) {
    const str end = prompt->text, begin = answer->text;
    return !(end.length && begin.length && end.data[end.length - 1] == '\n' && begin.data[0] == '\n');
}

/* Keeps the pieces of prompt and answer, whose memory is now the state's. */
static gm_status talk_keep(talk_state *s, arena *from, const chat_piece *prompt, size_t count, const chat_piece *answer,
                           size_t answer_count, error *e) {
    arena_free(&s->held);
    s->held = *from;
    *from = (arena){ 0 };
    s->pieces = arena_array(&s->held, count + answer_count, sizeof *s->pieces);
    if (!s->pieces) return fail_memory(e, "an example", (count + answer_count) * sizeof *s->pieces);
    memcpy(s->pieces, prompt, count * sizeof *prompt);
    memcpy(s->pieces + count, answer, answer_count * sizeof *answer);
    s->piece_count = count + answer_count;
    const chat_piece *last = &s->pieces[s->piece_count - 1];
    s->whole = meets_cleanly(&prompt[count - 1], answer) && last->scaffolding && str_ends_with(last->text, ">");
    return GM_OK;
}

static gm_status talk_render(talk_state *s, size_t first, size_t end, arena *scratch, error *e) {
    chat        before = s->talk->chat, upto = s->talk->chat;
    chat_piece *prompt, *answer;
    size_t      count, answer_count;
    before.count = first;
    upto.count = end;
    TRY(chat_render(&before, scratch, &prompt, &count, e));
    TRY(chat_answer(&upto, first, prompt, count, scratch, &answer, &answer_count, e));
    const size_t shared = draft_shared(s, prompt, count);
    if (!shared && s->draft.ids.count) {
        TRY(draft_finish(&s->draft, s->o->max_tokens, s->out, s->memory, e));
        draft_free(&s->draft);
        s->draft = (sequence_draft){ 0 };
    }
    TRY(draft_add(s, prompt + shared, count - shared, false, e));
    TRY(draft_add(s, answer, answer_count, true, e));
    if (answer_count < (chat_starts_thinking(prompt, count) ? 3 : 2)) /* nothing but its end */
        return fail(e, GM_BAD_FILE, "an answer is empty without the <|channel> in it; give thoughts as \"thinking\"");
    return talk_keep(s, scratch, prompt, count, answer, answer_count, e);
}

static gm_status talk_sequences(talk_state *s, error *e) {
    const chat *c = &s->talk->chat;
    size_t      end;
    for (size_t first = 0; first < c->count; first = end) {
        arena scratch = { 0 };
        end = first + 1;
        if (c->messages[first].role != CHAT_ASSISTANT) continue;
        end = answer_end(c, first);
        if (!s->talk->learned[first]) continue;
        const gm_status status = talk_render(s, first, end, &scratch, e);
        arena_free(&scratch);
        if (status) return status;
        /* What follows is cut off. (A thought is not: the next prompt is without it, and may be shorter.) */
        if (s->o->max_tokens && s->draft.ids.count > s->o->max_tokens && !c->think) break;
    }
    return draft_finish(&s->draft, s->o->max_tokens, s->out, s->memory, e);
}

static gm_status talk_make(const data_reader *r, const data_options *o, data_talk *t, arena *a, data_sequences *out,
                           error *e) {
    talk_state s = { .o = o, .talk = t, .memory = a, .out = out };
    TRY(data_media_load(r, o, &t->chat, a, e));
    const gm_status status = talk_sequences(&s, e);
    draft_free(&s.draft);
    arena_free(&s.held);
    return status;
}

/* ---- pairs and text ---- */

static gm_status pair_make(const data_reader *r, const data_options *o, data_record *record, arena *a,
                           data_sequences *out, error *e) {
    static const char *const names[] = { "chosen", "rejected" };
    for (size_t i = 0; i < 2; i++) {
        TRY(talk_make(r, o, &record->talk[i], a, out, e));
        if (out->count + out->left_out != i + 1)
            return fail(e, GM_BAD_FILE, "\"%s\" must be one answer: what the model sees changes between its messages",
                        names[i]);
    }
    out->truncated = out->truncated > 0;
    if (!out->left_out) return GM_OK;
    out->left_out = 1; /* both, if one is */
    out->count = out->truncated = 0;
    return GM_OK;
}

static gm_status text_make(const data_options *o, str text, arena *a, data_sequences *out, error *e) {
    sequence_draft d = { 0 };
    token_list_add(&d.ids, tokenizer_special(o->words, SPECIAL_BOS));
    gm_status status = tokenizer_encode_plain(o->words, text, &d.ids, e);
    if (!status) status = draft_mark(&d, 0, true, e);
    if (!status) d.counts[0] = false; /* nothing comes before it that could predict it */
    if (!status) status = draft_finish(&d, o->max_tokens, out, a, e);
    draft_free(&d);
    return status;
}

gm_status data_sequences_make(const data_reader *r, const data_options *o, data_record *record, arena *a,
                              data_sequences *out, error *e) {
    sha256_start(&out->content);
    if (!record->talks) return text_make(o, record->text, a, out, e);
    if (record->talks == 2) return pair_make(r, o, record, a, out, e);
    return talk_make(r, o, &record->talk[0], a, out, e);
}
