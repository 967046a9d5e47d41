/* accounts.c - who holds how much of the driver's memory at an event. */
#include "accounts.h"

#include "mem.h"
#include "table.h"

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

/* What tells the account of ROW from all others. */
static uint64_t
key_of(const mp_driver_life_t *row)
{
    return row->owner | (uint64_t)(uint16_t)row->device << 32 |
           (uint64_t)row->group << 48 | (uint64_t)row->is_torch << 56;
}

/* The account of ROW, one of COUNT whose numbers PLACES has by their keys;
 * NULL: out of memory. */
static mp_account_t *
account_of(mp_table_t *places, mp_account_t *accounts, size_t *count,
           const mp_driver_life_t *row)
{
    uint64_t key = key_of(row);
    uint32_t place = mp_table_get(places, key);
    if (place == MP_NO_INDEX) {
        uint32_t previous;
        place = (uint32_t)*count;
        if (mp_table_put(places, key, place, &previous) != MP_OK) {
            return NULL;
        }
        accounts[(*count)++] = (mp_account_t){
            .owner = row->owner,
            .device = row->device,
            .group = row->group,
            .is_torch = row->is_torch,
        };
    }
    return &accounts[place];
}

mp_status_t
mp_accounts_at(const mp_ledger_t *ledger, int64_t index,
               mp_account_t **accounts, size_t *count)
{
    size_t row_count;
    const mp_driver_life_t *rows = mp_ledger_rows(ledger, &row_count);
    change_t *changes = mp_calloc(2 * row_count + 1, sizeof(change_t));
    mp_table_t *places = mp_table_new(0);
    *accounts = mp_calloc(row_count + 1, sizeof(mp_account_t));
    *count = 0;
    if (changes == NULL || places == NULL || *accounts == NULL) {
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
        mp_account_t *account = account_of(places, *accounts, count, row);
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
    mp_table_free(places);
    mp_free(changes);
    return MP_OK;

fail:
    mp_table_free(places);
    mp_free(changes);
    mp_free(*accounts);
    *accounts = NULL;
    *count = 0;
    return MP_ERR_NOMEM;
}
