/* snapshot_words.h - the words of a memory snapshot.
 *
 * docs/formats/snapshot.md.  Written by export_snapshot.c, known again by
 * import_snapshot.c as atoms of unpickle.h. */
#ifndef MP_SNAPSHOT_WORDS_H
#define MP_SNAPSHOT_WORDS_H

/* Those that are written again and again.  X(NAME, text) */
#define MP_WRITTEN_WORDS(X)                                                   \
    X(ACTION, "action")                                                       \
    X(ADDR, "addr")                                                           \
    X(SIZE, "size")                                                           \
    X(STREAM, "stream")                                                       \
    X(FRAMES, "frames")                                                       \
    X(TIME_US, "time_us")                                                     \
    X(CATEGORY, "category")                                                   \
    X(USER_METADATA, "user_metadata")                                         \
    X(FORWARD_FRAMES, "forward_frames")                                       \
    X(POOL_ID, "pool_id")                                                     \
    X(DEVICE_FREE, "device_free")                                             \
    X(ALLOC, "alloc")                                                         \
    X(FREE_REQUESTED, "free_requested")                                       \
    X(FREE_COMPLETED, "free_completed")                                       \
    X(SEGMENT_ALLOC, "segment_alloc")                                         \
    X(SEGMENT_FREE, "segment_free")                                           \
    X(SEGMENT_MAP, "segment_map")                                             \
    X(SEGMENT_UNMAP, "segment_unmap")                                         \
    X(OOM, "oom")                                                             \
    X(SNAPSHOT, "snapshot")                                                   \
    X(FILENAME, "filename")                                                   \
    X(LINE, "line")                                                           \
    X(NAME, "name")                                                           \
    X(MODULE, "module")                                                       \
    X(OP, "op")                                                               \
    X(REGION, "region")                                                       \
    X(STEP, "step")                                                           \
    X(PHASE, "phase")                                                         \
    X(DEVICE, "device")                                                       \
    X(ADDRESS, "address")                                                     \
    X(TOTAL_SIZE, "total_size")                                               \
    X(ALLOCATED_SIZE, "allocated_size")                                       \
    X(ACTIVE_SIZE, "active_size")                                             \
    X(REQUESTED_SIZE, "requested_size")                                       \
    X(SEGMENT_TYPE, "segment_type")                                           \
    X(SEGMENT_POOL_ID, "segment_pool_id")                                     \
    X(IS_EXPANDABLE, "is_expandable")                                         \
    X(BLOCKS, "blocks")                                                       \
    X(STATE, "state")                                                         \
    X(ACTIVE_ALLOCATED, "active_allocated")                                   \
    X(ACTIVE_PENDING_FREE, "active_pending_free")                             \
    X(INACTIVE, "inactive")                                                   \
    X(LARGE, "large")                                                         \
    X(SMALL, "small")                                                         \
    X(STAGE, "stage")                                                         \
    X(START, "START")                                                         \
    X(END, "END")                                                             \
    X(MADE, "memprof_made")

/* Those that are only looked for, or written once. */
#define MP_OTHER_WORDS(X)                                                     \
    X(DEVICE_TRACES, "device_traces")                                         \
    X(SEGMENTS, "segments")                                                   \
    X(EXTERNAL_ANNOTATIONS, "external_annotations")                           \
    X(HOST_TRACES, "host_traces")                                             \
    X(HOST_SEGMENTS, "host_segments")                                         \
    X(ANNOTATE, "annotate")                                                   \
    X(HISTORY, "history")                                                     \
    X(REAL_SIZE, "real_size")                                                 \
    X(ACTIVE_AWAITING_FREE, "active_awaiting_free")                           \
    X(MEMPROF, "memprof")                                                     \
    X(MEMPROF_STEPS, "memprof_steps")                                         \
    X(CPU, "cpu")                                                             \
    X(START_NS, "start_ns")                                                   \
    X(START_WALL_US, "start_wall_us")                                         \
    X(INFO, "info")                                                           \
    X(VERSION, "version")                                                     \
    X(FORMAT, "format")

/* From 1. */
enum {
    MP_WORD_NONE,
#define X(name, text) MP_WORD_##name,
    MP_WRITTEN_WORDS(X)
    MP_OTHER_WORDS(X)
#undef X
        MP_WORD_LIMIT
};

#endif
