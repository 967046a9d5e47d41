/* pftrace.c - a Perfetto trace of track events.
 *
 * Field numbers are those of Perfetto's protos (trace_packet, track_event,
 * track_descriptor, counter_descriptor, interned_data, profile_common). */
#include "pftrace.h"

#include "mem.h"
#include "proto.h"
#include "sink.h"

#define PAGE                                                                  \
    65536 /* packets wait for the sink until there are so many bytes */
#define SEQUENCE 1 /* all packets are of one */

enum {
    TRACE_PACKET = 1
};
enum {
    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE = 10,
    PACKET_TRACK_EVENT = 11,
    PACKET_INTERNED = 12,
    PACKET_FLAGS = 13,
    PACKET_TRACK = 60
};
enum {
    FLAGS_CLEARED = 1,
    FLAGS_NEEDED = 2
}; /* what is interned */
enum {
    TRACK_UUID = 1,
    TRACK_NAME = 2,
    TRACK_PARENT = 5,
    TRACK_COUNTER = 8,
    TRACK_CHILD_ORDERING = 11,
    TRACK_RANK = 12,
    TRACK_DESCRIPTION = 14
};
enum {
    ORDERING_EXPLICIT = 3
};
enum {
    COUNTER_UNIT = 3,
    COUNTER_SHARE_KEY = 7
};
enum {
    UNIT_SIZE_BYTES = 3
};
enum {
    EVENT_CATEGORY = 3,
    EVENT_ARG = 4,
    EVENT_TYPE = 9,
    EVENT_NAME = 10,
    EVENT_TRACK = 11,
    EVENT_COUNTER = 30,
    EVENT_FLOW = 47,
    EVENT_FLOW_ENDS = 48,
    EVENT_STACK = 56,
    EVENT_WEIGHT = 57
};
enum {
    TYPE_COUNTER = 4
};
enum {
    ARG_NAME = 1,
    ARG_INT = 4,
    ARG_TEXT = 6
};
enum {
    INTERNED_ID = 1,
    INTERNED_TEXT = 2
};
enum {
    FRAME_FUNCTION = 2,
    FRAME_FILE = 5,
    FRAME_LINE = 6,
    STACK_FRAME = 2
};

/* What is interned: each kind numbers for itself, from 1. */
enum {
    CATEGORIES,
    NAMES,
    ARG_NAMES,
    FUNCTIONS,
    FILES,
    FRAMES,
    STACKS,
    INTERNED_KINDS
};
static const uint32_t interned_field[INTERNED_KINDS] = {1, 2, 3, 5, 18, 6, 7};

typedef struct {
    const mp_pftrace_t *trace;
    mp_sink_t *sink;
    mp_proto_t packets;  /* whole ones that wait, and the one being written */
    mp_proto_t interned; /* what the packet being written has to tell first */
    uint8_t *told;       /* a bit for each kind, by number */
    bool begun;
} writer_t;

static size_t
most_of(const mp_pftrace_t *trace)
{
    size_t most = trace->texts_count;
    most = trace->frames_count > most ? trace->frames_count : most;
    return trace->stacks_count > most ? trace->stacks_count : most;
}

/* ---- what is interned ------------------------------------------------------
 */

/* Whether number INDEX of KIND has to be told, which the caller then does. */
static bool
is_new(writer_t *writer, int kind, uint32_t index)
{
    uint8_t bit = (uint8_t)(1u << kind);
    if (writer->told[index] & bit) {
        return false;
    }
    writer->told[index] |= bit;
    return true;
}

/* The interned id of a text. */
static uint64_t
text_id(writer_t *writer, int kind, uint32_t index)
{
    if (is_new(writer, kind, index)) {
        const mp_pftrace_text_t *text = &writer->trace->texts[index];
        mp_proto_t *to = &writer->interned;
        size_t mark = mp_proto_open(to, interned_field[kind]);
        mp_proto_varint(to, INTERNED_ID, (uint64_t)index + 1);
        mp_proto_text(to, INTERNED_TEXT, text->text, text->length);
        mp_proto_close(to, mark);
    }
    return (uint64_t)index + 1;
}

static uint64_t
frame_id(writer_t *writer, uint32_t index)
{
    if (is_new(writer, FRAMES, index)) {
        const mp_pftrace_frame_t *frame = &writer->trace->frames[index];
        mp_proto_t *to = &writer->interned;
        uint64_t function = text_id(writer, FUNCTIONS, frame->function);
        uint64_t file = frame->file == MP_NO_INDEX
                            ? 0
                            : text_id(writer, FILES, frame->file);
        size_t mark = mp_proto_open(to, interned_field[FRAMES]);
        mp_proto_varint(to, INTERNED_ID, (uint64_t)index + 1);
        mp_proto_varint(to, FRAME_FUNCTION, function);
        if (file != 0) {
            mp_proto_varint(to, FRAME_FILE, file);
        }
        if (frame->line != 0) {
            mp_proto_varint(to, FRAME_LINE, frame->line);
        }
        mp_proto_close(to, mark);
    }
    return (uint64_t)index + 1;
}

static uint64_t
stack_id(writer_t *writer, uint32_t index)
{
    if (is_new(writer, STACKS, index)) {
        const mp_pftrace_t *trace = writer->trace;
        mp_proto_t *to = &writer->interned;
        int64_t begin = trace->stack_offsets[index];
        int64_t end = trace->stack_offsets[index + 1];
        for (int64_t i = begin; i < end; i++) { /* before the stack itself */
            (void)frame_id(writer, trace->stack_frames[i]);
        }
        size_t mark = mp_proto_open(to, interned_field[STACKS]);
        mp_proto_varint(to, INTERNED_ID, (uint64_t)index + 1);
        for (int64_t i = begin; i < end; i++) {
            mp_proto_varint(to, STACK_FRAME,
                            frame_id(writer, trace->stack_frames[i]));
        }
        mp_proto_close(to, mark);
    }
    return (uint64_t)index + 1;
}

/* ---- packets ---------------------------------------------------------------
 */

static size_t
packet_open(writer_t *writer)
{
    return mp_proto_open(&writer->packets, TRACE_PACKET);
}

static void
packet_close(writer_t *writer, size_t mark)
{
    mp_proto_t *packets = &writer->packets;
    uint64_t flags = FLAGS_NEEDED | (writer->begun ? 0 : FLAGS_CLEARED);
    writer->begun = true;
    mp_proto_varint(packets, PACKET_SEQUENCE, SEQUENCE);
    mp_proto_varint(packets, PACKET_FLAGS, flags);
    mp_proto_close(packets, mark);
    if (packets->length >= PAGE && !packets->failed) {
        (void)mp_sink_write(writer->sink, packets->bytes, packets->length);
        packets->length = 0;
    }
}

static void
write_track(writer_t *writer, const mp_pftrace_track_t *track)
{
    static const char share_key[] = "bytes";
    const mp_pftrace_text_t *texts = writer->trace->texts;
    mp_proto_t *to = &writer->packets;
    size_t packet = packet_open(writer);
    size_t mark = mp_proto_open(to, PACKET_TRACK);
    mp_proto_varint(to, TRACK_UUID, track->uuid);
    mp_proto_text(to, TRACK_NAME, texts[track->name].text,
                  texts[track->name].length);
    if (track->parent != 0) {
        mp_proto_varint(to, TRACK_PARENT, track->parent);
        mp_proto_varint(to, TRACK_RANK, (uint64_t)(int64_t)track->rank);
    }
    if (track->kind == MP_PFTRACE_GROUP) {
        mp_proto_varint(to, TRACK_CHILD_ORDERING, ORDERING_EXPLICIT);
    }
    else if (track->kind == MP_PFTRACE_BYTES) {
        size_t counter = mp_proto_open(to, TRACK_COUNTER);
        mp_proto_varint(to, COUNTER_UNIT, UNIT_SIZE_BYTES);
        mp_proto_text(to, COUNTER_SHARE_KEY, share_key, sizeof(share_key) - 1);
        mp_proto_close(to, counter);
    }
    if (track->description != MP_NO_INDEX) {
        mp_proto_text(to, TRACK_DESCRIPTION, texts[track->description].text,
                      texts[track->description].length);
    }
    mp_proto_close(to, mark);
    packet_close(writer, packet);
}

static void
write_samples(writer_t *writer, const mp_pftrace_samples_t *samples)
{
    mp_proto_t *to = &writer->packets;
    for (size_t i = 0; i < samples->count; i++) {
        size_t packet = packet_open(writer);
        mp_proto_varint(to, PACKET_TIMESTAMP, (uint64_t)samples->times[i]);
        size_t mark = mp_proto_open(to, PACKET_TRACK_EVENT);
        mp_proto_varint(to, EVENT_TYPE, TYPE_COUNTER);
        mp_proto_varint(to, EVENT_TRACK, samples->uuid);
        mp_proto_varint(to, EVENT_COUNTER, (uint64_t)samples->values[i]);
        mp_proto_close(to, mark);
        packet_close(writer, packet);
    }
}

static void
write_arg(writer_t *writer, const mp_pftrace_arg_t *arg)
{
    mp_proto_t *to = &writer->packets;
    size_t mark = mp_proto_open(to, EVENT_ARG);
    mp_proto_varint(to, ARG_NAME, text_id(writer, ARG_NAMES, arg->name));
    if (arg->text == MP_NO_INDEX) {
        mp_proto_varint(to, ARG_INT, (uint64_t)arg->number);
    }
    else {
        const mp_pftrace_text_t *text = &writer->trace->texts[arg->text];
        mp_proto_text(to, ARG_TEXT, text->text, text->length);
    }
    mp_proto_close(to, mark);
}

static void
write_event(writer_t *writer, const mp_pftrace_event_t *event)
{
    const mp_pftrace_t *trace = writer->trace;
    mp_proto_t *to = &writer->packets;
    writer->interned.length = 0;
    size_t packet = packet_open(writer);
    mp_proto_varint(to, PACKET_TIMESTAMP, (uint64_t)event->time_ns);
    size_t mark = mp_proto_open(to, PACKET_TRACK_EVENT);
    mp_proto_varint(to, EVENT_TYPE, event->kind);
    mp_proto_varint(to, EVENT_TRACK, trace->tracks[event->track].uuid);
    if (event->category != MP_NO_INDEX) {
        mp_proto_varint(to, EVENT_CATEGORY,
                        text_id(writer, CATEGORIES, event->category));
    }
    if (event->name != MP_NO_INDEX) {
        mp_proto_varint(to, EVENT_NAME, text_id(writer, NAMES, event->name));
    }
    for (size_t i = 0; i < event->args_count; i++) {
        write_arg(writer, &trace->args[event->args + i]);
    }
    if (event->flow != 0) {
        mp_proto_fixed64(to, event->flow_ends ? EVENT_FLOW_ENDS : EVENT_FLOW,
                         event->flow);
    }
    if (event->stack != MP_NO_INDEX) {
        mp_proto_varint(to, EVENT_STACK, stack_id(writer, event->stack));
        mp_proto_double(to, EVENT_WEIGHT, (double)event->weight);
    }
    mp_proto_close(to, mark);
    if (writer->interned.length > 0) {
        mp_proto_text(to, PACKET_INTERNED,
                      (const char *)writer->interned.bytes,
                      writer->interned.length);
    }
    packet_close(writer, packet);
}

/* ---- the whole -------------------------------------------------------------
 */

static bool
text_is_there(const mp_pftrace_t *trace, uint32_t text)
{
    return text == MP_NO_INDEX || text < trace->texts_count;
}

static bool
stacks_are_there(const mp_pftrace_t *trace)
{
    for (size_t i = 0; i < trace->stacks_count; i++) {
        if (trace->stack_offsets[i] < 0 ||
            trace->stack_offsets[i] > trace->stack_offsets[i + 1] ||
            (uint64_t)trace->stack_offsets[i + 1] >
                trace->stack_frames_count) {
            return false;
        }
    }
    for (size_t i = 0; i < trace->stack_frames_count; i++) {
        if (trace->stack_frames[i] >= trace->frames_count) {
            return false;
        }
    }
    for (size_t i = 0; i < trace->frames_count; i++) {
        if (trace->frames[i].function >= trace->texts_count ||
            !text_is_there(trace, trace->frames[i].file)) {
            return false;
        }
    }
    return true;
}

bool
mp_pftrace_check(const mp_pftrace_t *trace)
{
    for (size_t i = 0; i < trace->tracks_count; i++) {
        const mp_pftrace_track_t *track = &trace->tracks[i];
        if (track->uuid == 0 || track->name >= trace->texts_count ||
            !text_is_there(trace, track->description)) {
            return false;
        }
    }
    for (size_t i = 0; i < trace->args_count; i++) {
        if (trace->args[i].name >= trace->texts_count ||
            !text_is_there(trace, trace->args[i].text)) {
            return false;
        }
    }
    for (size_t i = 0; i < trace->events_count; i++) {
        const mp_pftrace_event_t *event = &trace->events[i];
        if (event->track >= trace->tracks_count ||
            !text_is_there(trace, event->name) ||
            !text_is_there(trace, event->category) ||
            (size_t)event->args + event->args_count > trace->args_count ||
            (event->stack != MP_NO_INDEX &&
             event->stack >= trace->stacks_count)) {
            return false;
        }
    }
    return stacks_are_there(trace);
}

mp_status_t
mp_pftrace_write(const mp_pftrace_t *trace, const char *path, int *saved_errno)
{
    writer_t writer = {.trace = trace};
    *saved_errno = 0;
    writer.told = mp_calloc(most_of(trace) + 1, 1);
    if (writer.told == NULL) {
        return MP_ERR_NOMEM;
    }
    mp_status_t status = mp_sink_open(path, &writer.sink, saved_errno);
    if (status != MP_OK) {
        mp_free(writer.told);
        return status;
    }
    for (size_t i = 0; i < trace->tracks_count; i++) {
        write_track(&writer, &trace->tracks[i]);
    }
    for (size_t i = 0; i < trace->samples_count; i++) {
        write_samples(&writer, &trace->samples[i]);
    }
    for (size_t i = 0; i < trace->events_count; i++) {
        write_event(&writer, &trace->events[i]);
    }
    bool failed = writer.packets.failed || writer.interned.failed;
    if (!failed) { /* the sink remembers a failure */
        (void)mp_sink_write(writer.sink, writer.packets.bytes,
                            writer.packets.length);
    }
    status = mp_sink_close(writer.sink, saved_errno);
    mp_proto_clear(&writer.packets);
    mp_proto_clear(&writer.interned);
    mp_free(writer.told);
    return failed && status == MP_OK ? MP_ERR_NOMEM : status;
}
