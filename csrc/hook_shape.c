/* hook_shape.c - a tensor as text: "float32[64, 3, 224, 224]". */
#include "hook_shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool
mp_shape_bytes(const mp_tensor_fact_t *fact, uint64_t *bytes)
{
    uint64_t total = fact->item_size;
    for (size_t i = 0; i < fact->dimensions; i++) {
        if (fact->sizes[i] < 0 ||
            __builtin_mul_overflow(total, (uint64_t)fact->sizes[i], &total)) {
            return false;
        }
    }
    *bytes = total;
    return true;
}

/* The name that Python has for a type; c10's in small letters if it is not
 * among the old ones: those are the same. */
static void
scalar_name(const char *scalar, char *name, size_t capacity)
{
    static const struct {
        const char *c10, *python;
    } old[] = {
        {"Byte", "uint8"},
        {"Char", "int8"},
        {"Short", "int16"},
        {"Int", "int32"},
        {"Long", "int64"},
        {"Half", "float16"},
        {"Float", "float32"},
        {"Double", "float64"},
        {"ComplexHalf", "complex32"},
        {"ComplexFloat", "complex64"},
        {"ComplexDouble", "complex128"},
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(old); i++) {
        if (strcmp(scalar, old[i].c10) == 0) {
            scalar = old[i].python;
            break;
        }
    }
    size_t length = 0;
    for (; scalar[length] != 0 && length + 1 < capacity; length++) {
        char letter = scalar[length];
        name[length] = letter;
        if (letter >= 'A' && letter <= 'Z') {
            name[length] = (char)(letter + ('a' - 'A'));
        }
    }
    name[length] = 0;
}

size_t
mp_shape_text(const mp_tensor_fact_t *fact, char *text, size_t capacity)
{
    char name[32];
    scalar_name(fact->scalar, name, sizeof(name));
    size_t length = (size_t)snprintf(text, capacity, "%s[", name);
    for (size_t i = 0; i < fact->dimensions; i++) {
        if (capacity - length < 32) { /* a number, or this, and the end */
            length +=
                (size_t)snprintf(text + length, capacity - length, "...");
            break;
        }
        length +=
            (size_t)snprintf(text + length, capacity - length, "%s%" PRId64,
                             i == 0 ? "" : ", ", fact->sizes[i]);
    }
    return length + (size_t)snprintf(text + length, capacity - length, "]");
}
