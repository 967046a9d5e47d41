/* snapshot_segments.c - a snapshot's segments: the state at its end.
 *
 * Blocks tile their segment to the byte: the page adds up sizes to find
 * addresses. */
#include "mem.h"
#include "snapshot_writer.h"

#include <stdlib.h>

#define SMALL_SEGMENT (UINT64_C(2) << 20) /* torch's pool of small blocks */

/* ---- segments ------------------------------------------------------------
 */

static int
by_address(const void *left, const void *right)
{
    const mp_allocation_t *a = *(const mp_allocation_t *const *)left;
    const mp_allocation_t *b = *(const mp_allocation_t *const *)right;
    return a->address < b->address ? -1 : a->address > b->address;
}

static void
put_gap(mp_snapshot_writer_t *writer, mp_pickle_items_t *blocks, uint64_t from,
        uint64_t to)
{
    if (from >= to) {
        return;
    }
    mp_pickle_items_t block;
    mp_pickle_item(&writer->pickle, blocks);
    mp_pickle_dict(&writer->pickle, &block);
    mp_snapshot_put_int(writer, &block, MP_WORD_ADDRESS, from);
    mp_snapshot_put_int(writer, &block, MP_WORD_SIZE, to - from);
    mp_snapshot_put_int(writer, &block, MP_WORD_REQUESTED_SIZE, 0);
    mp_snapshot_put_key(writer, &block, MP_WORD_STATE);
    mp_snapshot_put_word(writer, MP_WORD_INACTIVE);
    mp_snapshot_put_key(writer, &block, MP_WORD_FRAMES);
    mp_pickle_get(&writer->pickle, writer->nothing);
    mp_pickle_close(&writer->pickle, &block);
}

static void
put_block(mp_snapshot_writer_t *writer, mp_pickle_items_t *blocks,
          const mp_allocation_t *life, uint64_t size)
{
    mp_pickle_items_t block;
    mp_pickle_item(&writer->pickle, blocks);
    mp_pickle_dict(&writer->pickle, &block);
    mp_snapshot_put_int(writer, &block, MP_WORD_ADDRESS, life->address);
    mp_snapshot_put_int(writer, &block, MP_WORD_SIZE, size);
    mp_snapshot_put_int(writer, &block, MP_WORD_REQUESTED_SIZE, life->size);
    mp_snapshot_put_key(writer, &block, MP_WORD_STATE);
    mp_snapshot_put_word(writer, life->died_event >= 0
                                     ? MP_WORD_ACTIVE_PENDING_FREE
                                     : MP_WORD_ACTIVE_ALLOCATED);
    mp_snapshot_put_key(writer, &block, MP_WORD_FRAMES);
    mp_snapshot_put_frames(writer, life->stack);
    mp_snapshot_put_int(writer, &block, MP_WORD_STREAM, life->stream);
    mp_snapshot_put_known(writer, &block, life);
    mp_pickle_close(&writer->pickle, &block);
}

/* How many bytes of the segment the block takes: its own, rounded up as torch
 * does, as far as there is room. */
static uint64_t
block_size(const mp_place_t *place, const mp_allocation_t *life, uint64_t next)
{
    uint64_t unit = place->device == MP_DEVICE_CPU ? 1 : 512;
    uint64_t size = (life->size + unit - 1) / unit * unit;
    size = size == 0 && unit > 1 ? unit : size;
    return size < next - life->address ? size : next - life->address;
}

static void
put_segment(mp_snapshot_writer_t *writer, mp_pickle_items_t *segments,
            const mp_place_t *place, const mp_span_t *span,
            const mp_allocation_t *const *lives, size_t count)
{
    mp_pickle_t *pickle = &writer->pickle;
    uint64_t allocated = 0, active = 0, requested = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t next = i + 1 < count ? lives[i + 1]->address : span->end;
        uint64_t size = block_size(place, lives[i], next);
        active += size;
        requested += lives[i]->size;
        allocated += lives[i]->died_event < 0 ? size : 0;
    }
    mp_pickle_items_t segment, blocks;
    mp_pickle_item(pickle, segments);
    mp_pickle_dict(pickle, &segment);
    mp_snapshot_put_int(writer, &segment, MP_WORD_DEVICE,
                        (uint64_t)(place - writer->survey.places));
    mp_snapshot_put_int(writer, &segment, MP_WORD_ADDRESS, span->begin);
    mp_snapshot_put_int(writer, &segment, MP_WORD_TOTAL_SIZE,
                        span->end - span->begin);
    mp_snapshot_put_int(writer, &segment, MP_WORD_ALLOCATED_SIZE, allocated);
    mp_snapshot_put_int(writer, &segment, MP_WORD_ACTIVE_SIZE, active);
    mp_snapshot_put_int(writer, &segment, MP_WORD_REQUESTED_SIZE, requested);
    mp_snapshot_put_int(writer, &segment, MP_WORD_STREAM, span->stream);
    mp_snapshot_put_key(writer, &segment, MP_WORD_SEGMENT_TYPE);
    mp_snapshot_put_word(writer, span->end - span->begin > SMALL_SEGMENT
                                     ? MP_WORD_LARGE
                                     : MP_WORD_SMALL);
    mp_snapshot_put_key(writer, &segment, MP_WORD_SEGMENT_POOL_ID);
    mp_snapshot_put_pool(writer, span->pool);
    mp_snapshot_put_key(writer, &segment, MP_WORD_IS_EXPANDABLE);
    mp_pickle_bool(pickle, span->mapped);
    if (place->odd) { /* nothing of it is true but what lies in it */
        mp_snapshot_put_key(writer, &segment, MP_WORD_MADE);
        mp_pickle_bool(pickle, true);
    }
    mp_snapshot_put_key(writer, &segment, MP_WORD_FRAMES);
    mp_pickle_get(pickle, writer->nothing);
    mp_snapshot_put_key(writer, &segment, MP_WORD_BLOCKS);
    mp_pickle_list(pickle, &blocks);
    uint64_t at = span->begin;
    for (size_t i = 0; i < count; i++) {
        uint64_t next = i + 1 < count ? lives[i + 1]->address : span->end;
        put_gap(writer, &blocks, at, lives[i]->address);
        uint64_t size = block_size(place, lives[i], next);
        put_block(writer, &blocks, lives[i], size);
        at = lives[i]->address + size;
    }
    put_gap(writer, &blocks, at, span->end);
    mp_pickle_close(pickle, &blocks);
    mp_pickle_close(pickle, &segment);
}

/* All segments of PLACE; LIVES has room for every block that is there. */
static void
put_segments_of(mp_snapshot_writer_t *writer, mp_pickle_items_t *segments,
                const mp_place_t *place, const mp_allocation_t **lives)
{
    size_t count = 0, cursor = 0, from = 0;
    uint64_t addr;
    uint32_t row;
    while (mp_table_next(place->active, &cursor, &addr, &row)) {
        if (!writer->survey.left_out[row]) {
            lives[count++] = &writer->source->lives[row];
        }
    }
    if (count > 0) {
        qsort(lives, count, sizeof(*lives), by_address);
    }
    if (place->odd) {
        mp_span_t all = {.begin = place->low, .end = place->high};
        if (place->has_blocks) {
            put_segment(writer, segments, place, &all, lives, count);
        }
        return;
    }
    for (size_t i = 0; i < place->span_count; i++) {
        const mp_span_t *span = &place->spans[i];
        size_t to = from;
        while (to < count && lives[to]->address < span->end) {
            to++;
        }
        put_segment(writer, segments, place, span, lives + from, to - from);
        from = to;
    }
}

void
mp_snapshot_put_segments(mp_snapshot_writer_t *writer)
{
    const mp_survey_t *survey = &writer->survey;
    size_t most = 0;
    for (size_t i = 0; i < survey->place_count; i++) {
        const mp_table_t *active = survey->places[i].active;
        size_t count = active == NULL ? 0 : mp_table_count(active);
        most = count > most ? count : most;
    }
    const mp_allocation_t **lives =
        mp_realloc(NULL, (most + 1) * sizeof(*lives));
    if (lives == NULL) {
        mp_snapshot_fail(writer, MP_ERR_NOMEM);
        mp_pickle_none(&writer->pickle);
        return;
    }
    mp_pickle_items_t segments;
    mp_pickle_list(&writer->pickle, &segments);
    for (size_t i = 0; i < survey->place_count; i++) {
        if (!survey->places[i].met) {
            continue;
        }
        put_segments_of(writer, &segments, &survey->places[i], lives);
    }
    mp_pickle_close(&writer->pickle, &segments);
    mp_free((void *)lives);
}
