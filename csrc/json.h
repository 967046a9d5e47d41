/* json.h - JSON's words, into an outfile.
 *
 * Words only: brackets, commas and colons are the caller's, as literals
 * (mp_outfile_text).  All output is ASCII, and nothing here can write a number
 * or a text that a strict parser refuses.  Holds no state. */
#ifndef MP_JSON_H
#define MP_JSON_H

#include "outfile.h"

/* The text in quotes.  Control characters, quotes and backslashes are
 * escaped, and what is not ASCII as \u, above U+FFFF as two.  What is no
 * UTF-8 becomes U+FFFD: one for a lone surrogate, else one for each longest
 * beginning of a character, as Python's "replace" does. */
void mp_json_string(mp_outfile_t *file, const char *text, size_t length);

/* The same without the quotes: for a text made of several. */
void mp_json_characters(mp_outfile_t *file, const char *text, size_t length);

void mp_json_int(mp_outfile_t *file, int64_t value);
void mp_json_uint(mp_outfile_t *file, uint64_t value);
/* "0x..." in quotes, lower case. */
void mp_json_hex(mp_outfile_t *file, uint64_t value);
/* Nanoseconds as microseconds with three decimals; below 0: 0. */
void mp_json_micros(mp_outfile_t *file, int64_t nanoseconds);
/* Up to nine significant digits.  Not a number, infinite: 0. */
void mp_json_double(mp_outfile_t *file, double value);

/* Digits of VALUE at AT, which has room for 20; where they end. */
char *mp_json_digits(char *at, uint64_t value);

#endif
