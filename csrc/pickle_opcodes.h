/* pickle_opcodes.h - the opcodes of pickles that hold plain values only.
 *
 * docs/formats/snapshot.md.  Written by pickle.c, read by unpickle.c. */
#ifndef MP_PICKLE_OPCODES_H
#define MP_PICKLE_OPCODES_H

/* X(NAME, byte, bytes of its argument before any text) */
#define MP_PICKLE_LIST(X)                                                     \
    X(PROTO, 0x80, 1)                                                         \
    X(FRAME, 0x95, 8)                                                         \
    X(MARK, '(', 0)                                                           \
    X(STOP, '.', 0)                                                           \
    X(NONE, 'N', 0)                                                           \
    X(NEWTRUE, 0x88, 0)                                                       \
    X(NEWFALSE, 0x89, 0)                                                      \
    X(BININT, 'J', 4)                                                         \
    X(BININT1, 'K', 1)                                                        \
    X(BININT2, 'M', 2)                                                        \
    X(LONG1, 0x8a, 1)                                                         \
    X(BINFLOAT, 'G', 8)                                                       \
    X(SHORT_BINUNICODE, 0x8c, 1)                                              \
    X(BINUNICODE, 'X', 4)                                                     \
    X(EMPTY_DICT, '}', 0)                                                     \
    X(EMPTY_LIST, ']', 0)                                                     \
    X(EMPTY_TUPLE, ')', 0)                                                    \
    X(TUPLE, 't', 0)                                                          \
    X(TUPLE1, 0x85, 0)                                                        \
    X(TUPLE2, 0x86, 0)                                                        \
    X(TUPLE3, 0x87, 0)                                                        \
    X(APPEND, 'a', 0)                                                         \
    X(APPENDS, 'e', 0)                                                        \
    X(SETITEM, 's', 0)                                                        \
    X(SETITEMS, 'u', 0)                                                       \
    X(MEMOIZE, 0x94, 0)                                                       \
    X(BINPUT, 'q', 1)                                                         \
    X(BINGET, 'h', 1)                                                         \
    X(LONG_BINPUT, 'r', 4)                                                    \
    X(LONG_BINGET, 'j', 4)

enum {
#define X(name, byte, argument) MP_PICKLE_##name = (byte),
    MP_PICKLE_LIST(X)
#undef X
};

#endif
