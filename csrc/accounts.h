/* accounts.h - who holds how much of the driver's memory at an event.
 *
 * Sums over the rows of a ledger; changes none. */
#ifndef MP_ACCOUNTS_H
#define MP_ACCOUNTS_H

#include "ledger.h"

/* What one owner holds in one group of one device: 48 bytes, for NumPy. */
typedef struct {
    int64_t bytes; /* at the event asked for */
    int64_t peak;  /* highest up to it */
    int64_t total; /* all that was taken up to it */
    int64_t count; /* entries at it */
    int64_t taken; /* entries taken up to it */
    uint32_t owner;
    int16_t device;
    uint8_t group;
    uint8_t is_torch;
} mp_account_t;

_Static_assert(sizeof(mp_account_t) == 48, "the NumPy dtype says so");

/* What everybody holds after event INDEX (-1: at the start), a row for each
 * device, group, owner and whether it is torch's, which the caller frees with
 * mp_free.  LEDGER keeps its dead, or is NULL. */
mp_status_t mp_accounts_at(const mp_ledger_t *ledger, int64_t index,
                           mp_account_t **accounts, size_t *count);

#endif
