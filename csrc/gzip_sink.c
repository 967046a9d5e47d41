/* gzip_sink.c - pieces compressed side by side, written in order.
 *
 * A ring of slots.  The caller fills one after the other; threads, and the
 * caller when the ring is full, take filled ones in order and compress them;
 * the caller writes compressed ones in order.  A piece ends on a byte's edge
 * (Z_SYNC_FLUSH), so that pieces put behind each other are one stream. */
#include "gzip_sink.h"

#include "mem.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <zlib.h>

enum {
    PIECE = 128 * 1024,
    DICTIONARY = 32 * 1024,
    /* Deflate never grows a piece by more than a few bytes a block. */
    COMPRESSED = PIECE + PIECE / 8 + 1024,
    SLOTS = 8,
    MAX_THREADS = 3,
    LEVEL = 5 /* 6: a hundredth smaller, for half as much time again */
};

typedef struct {
    unsigned char *bytes; /* the dictionary's place, then the piece's */
    unsigned char *compressed;
    size_t dictionary; /* bytes of it, right before the piece */
    size_t length;
    size_t compressed_length;
    uint32_t crc;
    mp_status_t status;
    bool is_last;
    bool is_done;
} slot_t;

struct mp_gzip_sink {
    mp_sink_t *sink;
    mp_status_t status; /* the caller's: the first failure */
    uint64_t length;
    uint32_t crc;
    slot_t slots[SLOTS];
    uint64_t written; /* pieces that have gone to the sink */
    z_stream zlib;    /* the caller's */
    bool has_zlib;
    bool asked_for_threads;

    pthread_mutex_t lock; /* of all below, and of is_done */
    pthread_cond_t filled, done;
    uint64_t submitted; /* pieces filled; the next slot is the open one */
    uint64_t taken;     /* pieces that somebody compresses, or has */
    bool is_over;
    int thread_count;
    pthread_t threads[MAX_THREADS];
};

/* ---- compressing one piece ------------------------------------------------
 */

static void *
zlib_alloc(void *context, unsigned int count, unsigned int size)
{
    (void)context;
    return mp_calloc(count, size);
}

static void
zlib_free(void *context, void *memory)
{
    (void)context;
    mp_free(memory);
}

static bool
zlib_open(z_stream *zlib)
{
    *zlib = (z_stream){.zalloc = zlib_alloc, .zfree = zlib_free};
    /* Minus: no header and trailer of zlib's. */
    return deflateInit2(zlib, LEVEL, Z_DEFLATED, -MAX_WBITS, MAX_MEM_LEVEL - 1,
                        Z_DEFAULT_STRATEGY) == Z_OK;
}

static void
compress_slot(slot_t *slot, z_stream *zlib)
{
    unsigned char *piece = slot->bytes + DICTIONARY;
    slot->crc = (uint32_t)crc32(0, piece, (uInt)slot->length);
    slot->status = MP_ERR_STATE;
    if (deflateReset(zlib) != Z_OK ||
        (slot->dictionary > 0 &&
         deflateSetDictionary(zlib, piece - slot->dictionary,
                              (uInt)slot->dictionary) != Z_OK)) {
        return;
    }
    zlib->next_in = piece;
    zlib->avail_in = (uInt)slot->length;
    zlib->next_out = slot->compressed;
    zlib->avail_out = COMPRESSED;
    int result = deflate(zlib, slot->is_last ? Z_FINISH : Z_SYNC_FLUSH);
    if (result == (slot->is_last ? Z_STREAM_END : Z_OK) &&
        zlib->avail_in == 0 && zlib->avail_out > 0) {
        slot->compressed_length = COMPRESSED - zlib->avail_out;
        slot->status = MP_OK;
    }
}

/* Compress the next piece that nobody has taken; false: there is none.  The
 * lock is held, and let go meanwhile. */
static bool
compress_next(mp_gzip_sink_t *gzip, z_stream *zlib)
{
    if (gzip->taken == gzip->submitted) {
        return false;
    }
    slot_t *slot = &gzip->slots[gzip->taken++ % SLOTS];
    pthread_mutex_unlock(&gzip->lock);
    compress_slot(slot, zlib);
    pthread_mutex_lock(&gzip->lock);
    slot->is_done = true;
    pthread_cond_signal(&gzip->done); /* only the caller waits for it */
    return true;
}

static void *
work(void *argument)
{
    mp_gzip_sink_t *gzip = argument;
    z_stream zlib;
    if (!zlib_open(&zlib)) {
        return NULL; /* others, the caller at least, do it */
    }
    pthread_mutex_lock(&gzip->lock);
    while (!gzip->is_over) {
        if (!compress_next(gzip, &zlib)) {
            pthread_cond_wait(&gzip->filled, &gzip->lock);
        }
    }
    pthread_mutex_unlock(&gzip->lock);
    (void)deflateEnd(&zlib);
    return NULL;
}

/* One thread less than there are processors: the caller is one.  None at all
 * is no failure. */
static void
start_threads(mp_gzip_sink_t *gzip)
{
    cpu_set_t set;
    int processors =
        sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    /* Signals are for the program's threads, not for ours. */
    sigset_t all, before;
    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) {
        return;
    }
    while (gzip->thread_count < MAX_THREADS &&
           gzip->thread_count < processors - 1 &&
           pthread_create(&gzip->threads[gzip->thread_count], NULL, work,
                          gzip) == 0) {
        gzip->thread_count++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- the ring -------------------------------------------------------------
 */

static void
fail(mp_gzip_sink_t *gzip, mp_status_t status)
{
    if (gzip->status == MP_OK) {
        gzip->status = status;
    }
}

/* Write pieces until at most PENDING are submitted and not written; those
 * that are compressed already go in any case.  The lock is held. */
static void
write_pieces(mp_gzip_sink_t *gzip, uint64_t pending)
{
    while (gzip->written < gzip->submitted) {
        slot_t *slot = &gzip->slots[gzip->written % SLOTS];
        if (!slot->is_done) {
            if (gzip->submitted - gzip->written <= pending) {
                return;
            }
            if (!compress_next(gzip, &gzip->zlib)) {
                pthread_cond_wait(&gzip->done, &gzip->lock);
            }
            continue;
        }
        pthread_mutex_unlock(&gzip->lock);
        fail(gzip, slot->status);
        if (gzip->status == MP_OK) {
            fail(gzip, mp_sink_write(gzip->sink, slot->compressed,
                                     slot->compressed_length));
            gzip->crc = (uint32_t)crc32_combine(gzip->crc, slot->crc,
                                                (z_off_t)slot->length);
            gzip->length += slot->length;
        }
        pthread_mutex_lock(&gzip->lock);
        gzip->written++;
    }
}

static bool
slot_allocate(slot_t *slot)
{
    if (slot->bytes == NULL) {
        slot->bytes = mp_calloc(1, DICTIONARY + PIECE);
        slot->compressed = mp_calloc(1, COMPRESSED);
    }
    return slot->bytes != NULL && slot->compressed != NULL;
}

/* The open piece is full, or the last one. */
static void
submit(mp_gzip_sink_t *gzip, bool is_last)
{
    slot_t *slot = &gzip->slots[gzip->submitted % SLOTS];
    slot->is_last = is_last;
    slot->is_done = false;
    if (!is_last && !gzip->asked_for_threads) {
        gzip->asked_for_threads = true;
        start_threads(gzip);
    }
    pthread_mutex_lock(&gzip->lock);
    gzip->submitted++;
    pthread_cond_signal(&gzip->filled);
    write_pieces(gzip, is_last ? 0 : SLOTS - 1);
    pthread_mutex_unlock(&gzip->lock);
    if (is_last) {
        return;
    }
    slot_t *next = &gzip->slots[gzip->submitted % SLOTS];
    if (!slot_allocate(next)) {
        fail(gzip, MP_ERR_NOMEM);
        return;
    }
    /* A piece is longer than the dictionary.  The slot before is only read by
     * whoever compresses it. */
    memcpy(next->bytes, slot->bytes + PIECE, DICTIONARY);
    next->dictionary = DICTIONARY;
    next->length = 0;
}

mp_status_t
mp_gzip_sink_open(mp_sink_t *sink, mp_gzip_sink_t **out)
{
    mp_gzip_sink_t *gzip = mp_calloc(1, sizeof(*gzip));
    if (gzip == NULL) {
        return MP_ERR_NOMEM;
    }
    gzip->sink = sink;
    pthread_mutex_init(&gzip->lock, NULL);
    pthread_cond_init(&gzip->filled, NULL);
    pthread_cond_init(&gzip->done, NULL);
    gzip->has_zlib = zlib_open(&gzip->zlib);
    if (!gzip->has_zlib || !slot_allocate(&gzip->slots[0])) {
        (void)mp_gzip_sink_close(gzip, false);
        return MP_ERR_NOMEM;
    }
    /* No name, no time, level not told, Unix. */
    static const unsigned char header[10] = {0x1f, 0x8b, 8, 0, 0,
                                             0,    0,    0, 0, 3};
    fail(gzip, mp_sink_write(sink, header, sizeof(header)));
    *out = gzip;
    return MP_OK;
}

mp_status_t
mp_gzip_sink_write(mp_gzip_sink_t *gzip, const void *bytes, size_t length)
{
    const unsigned char *from = bytes;
    while (length > 0 && gzip->status == MP_OK) {
        slot_t *slot = &gzip->slots[gzip->submitted % SLOTS];
        size_t part = PIECE - slot->length;
        part = part < length ? part : length;
        memcpy(slot->bytes + DICTIONARY + slot->length, from, part);
        slot->length += part;
        from += part;
        length -= part;
        if (slot->length == PIECE) {
            submit(gzip, false);
        }
    }
    return gzip->status;
}

static void
put_32(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        at[i] = (unsigned char)(value >> (8 * i));
    }
}

mp_status_t
mp_gzip_sink_close(mp_gzip_sink_t *gzip, bool complete)
{
    if (gzip == NULL) {
        return MP_OK;
    }
    if (complete && gzip->status == MP_OK) {
        submit(gzip, true);
    }
    pthread_mutex_lock(&gzip->lock);
    gzip->is_over = true;
    pthread_cond_broadcast(&gzip->filled);
    pthread_mutex_unlock(&gzip->lock);
    for (int i = 0; i < gzip->thread_count; i++) {
        (void)pthread_join(gzip->threads[i], NULL);
    }
    if (complete && gzip->status == MP_OK) {
        unsigned char trailer[8];
        put_32(trailer, gzip->crc);
        put_32(trailer + 4, (uint32_t)gzip->length);
        fail(gzip, mp_sink_write(gzip->sink, trailer, sizeof(trailer)));
    }
    mp_status_t status = gzip->status;
    if (gzip->has_zlib) {
        (void)deflateEnd(&gzip->zlib);
    }
    for (size_t i = 0; i < SLOTS; i++) {
        mp_free(gzip->slots[i].bytes);
        mp_free(gzip->slots[i].compressed);
    }
    pthread_cond_destroy(&gzip->filled);
    pthread_cond_destroy(&gzip->done);
    pthread_mutex_destroy(&gzip->lock);
    mp_free(gzip);
    return status;
}
