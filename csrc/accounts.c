/* accounts.c - who holds how much of the driver's memory at an event. */
#include "accounts.h"

#include "mem.h"

#include <stdlib.h>

/* A birth (+1) or an end (-1) of a row. */
typedef struct {
    int64_t event;
    uint32_t row;
    int sign;
} change_t;

static int
change_order(const void *left, const void *right)
{
    const change_t *a = left;
    const change_t *b = right;
    if (a->event != b->event) {
        return a->event < b->event ? -1 : 1;
    }
    if (a->sign != b->sign) {
        return a->sign - b->sign; /* what is replaced ends first */
    }
    return a->row < b->row ? -1 : a->row > b->row;
}

/* The account of ROW; NULL: out of memory. */
static mp_account_t *
account_of(mp_account_t **accounts, size_t *count, const mp_driver_life_t *row)
{
    for (size_t i = *count; i-- > 0;) {
        mp_account_t *account = &(*accounts)[i];
        if (account->owner == row->owner && account->device == row->device &&
            account->group == row->group &&
            account->is_torch == row->is_torch) {
            return account;
        }
    }
    mp_account_t *more =
        mp_realloc(*accounts, (*count + 1) * sizeof(mp_account_t));
    if (more == NULL) {
        return NULL;
    }
    *accounts = more;
    more[*count] = (mp_account_t){
        .owner = row->owner,
        .device = row->device,
        .group = row->group,
        .is_torch = row->is_torch,
    };
    return &more[(*count)++];
}

mp_status_t
mp_accounts_at(const mp_ledger_t *ledger, int64_t index,
               mp_account_t **accounts, size_t *count)
{
    size_t row_count;
    const mp_driver_life_t *rows = mp_ledger_rows(ledger, &row_count);
    change_t *changes = mp_calloc(2 * row_count + 1, sizeof(change_t));
    *accounts = mp_calloc(1, sizeof(mp_account_t));
    *count = 0;
    if (changes == NULL || *accounts == NULL) {
        goto fail;
    }
    size_t n = 0;
    for (uint32_t i = 0; i < row_count; i++) {
        if (rows[i].born_event <= index) {
            changes[n++] = (change_t){rows[i].born_event, i, 1};
            if (rows[i].died_event >= 0 && rows[i].died_event <= index) {
                changes[n++] = (change_t){rows[i].died_event, i, -1};
            }
        }
    }
    qsort(changes, n, sizeof(change_t), change_order);
    for (size_t i = 0; i < n; i++) {
        const mp_driver_life_t *row = &rows[changes[i].row];
        mp_account_t *account = account_of(accounts, count, row);
        if (account == NULL) {
            goto fail;
        }
        uint64_t bytes = mp_driver_bytes(row);
        if (changes[i].sign < 0) {
            account->bytes = (int64_t)((uint64_t)account->bytes - bytes);
            account->count--;
            continue;
        }
        account->bytes = (int64_t)((uint64_t)account->bytes + bytes);
        account->total = (int64_t)((uint64_t)account->total + bytes);
        account->count++;
        account->taken++;
        if (account->bytes > account->peak) {
            account->peak = account->bytes;
        }
    }
    mp_free(changes);
    return MP_OK;

fail:
    mp_free(changes);
    mp_free(*accounts);
    *accounts = NULL;
    *count = 0;
    return MP_ERR_NOMEM;
}
