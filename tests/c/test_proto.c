/* test_proto.c - fields as protocol buffers have them. */
#include "mem.h"
#include "mp_test.h"
#include "proto.h"

#include <stdlib.h>

static void
check_bytes(const mp_proto_t *message, const char *bytes, size_t length)
{
    MP_CHECK(!message->failed);
    MP_CHECK_EQ(message->length, length);
    MP_CHECK(memcmp(message->bytes, bytes, length) == 0);
}

static void
test_proto_writes_every_kind_of_field(void)
{
    mp_proto_t message = {0};
    mp_proto_varint(&message, 1, 150);
    mp_proto_varint(&message, 16, UINT64_MAX);
    mp_proto_fixed64(&message, 2, 0x0102030405060708u);
    mp_proto_double(&message, 3, 1.0);
    mp_proto_text(&message, 4, "a\0b", 3);
    mp_proto_text(&message, 5, NULL, 0);
    static const char expected[] =
        "\x08\x96\x01"
        "\x80\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
        "\x11\x08\x07\x06\x05\x04\x03\x02\x01"
        "\x19\0\0\0\0\0\0\xf0\x3f"
        "\x22\x03"
        "a\0b"
        "\x2a";
    check_bytes(&message, expected, sizeof(expected)); /* with its last NUL */
    mp_proto_clear(&message);
}

/* Messages within messages, of every width of their length. */
static void
test_proto_lengths_of_messages_inside_take_what_they_need(void)
{
    static char text[300000];
    const size_t sizes[] = {0,   1,     123,   124,   125,   126,   127,
                            128, 16379, 16380, 16381, 16384, 300000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        mp_proto_t message = {0};
        size_t outer = mp_proto_open(&message, 1);
        size_t inner = mp_proto_open(&message, 2);
        mp_proto_text(&message, 3, text, sizes[i]);
        mp_proto_close(&message, inner);
        mp_proto_varint(&message, 4, 7);
        mp_proto_close(&message, outer);
        MP_CHECK(!message.failed);
        /* Read the lengths back, outermost first. */
        size_t at = 0;
        size_t left = message.length;
        for (int depth = 1; depth <= 3; depth++) {
            MP_CHECK_EQ(message.bytes[at++], depth << 3 | 2);
            size_t length = 0;
            int shift = 0;
            do {
                length |= (size_t)(message.bytes[at] & 0x7f) << shift;
                shift += 7;
            } while (message.bytes[at++] & 0x80);
            MP_CHECK(length < left);
            left = length;
        }
        MP_CHECK_EQ(left, sizes[i]);
        MP_CHECK_EQ(at + sizes[i] + 2, message.length);
        MP_CHECK_EQ(message.bytes[message.length - 1], 7);
        mp_proto_clear(&message);
    }
}

static void
test_proto_remembers_that_memory_was_out(void)
{
    for (long n = 1; n <= 3; n++) {
        mp_proto_t message = {0};
        mp_mem_fail_after(n);
        size_t mark = mp_proto_open(&message, 1);
        for (int i = 0; i < 2000; i++) {
            mp_proto_text(&message, 2, "some text", 9);
        }
        mp_proto_close(&message, mark);
        MP_CHECK(message.failed);
        mp_mem_fail_after(0);
        mp_proto_varint(&message, 3, 1); /* it stays so */
        MP_CHECK(message.failed);
        mp_proto_clear(&message);
        MP_CHECK_EQ(mp_mem_bytes(), 0);
    }
}

MP_TEST_SUITE(
    proto, MP_TEST(test_proto_writes_every_kind_of_field),
    MP_TEST(test_proto_lengths_of_messages_inside_take_what_they_need),
    MP_TEST(test_proto_remembers_that_memory_was_out))
