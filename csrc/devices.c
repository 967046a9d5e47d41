/* devices.c - the devices seen, and what is counted of each. */
#include "devices.h"

#include "mem.h"

#include <string.h>

static void
device_free(mp_device_t *device)
{
    if (device != NULL) {
        mp_table_free(device->live);
        mp_ranges_free(device->segments);
        mp_free(device);
    }
}

void
mp_devices_clear(mp_devices_t *devices)
{
    for (size_t i = 0; i < devices->capacity; i++) {
        device_free(devices->at[i]);
    }
    mp_free(devices->at);
    *devices = (mp_devices_t){0};
}

mp_device_t *
mp_devices_add(mp_devices_t *devices, int16_t id)
{
    size_t index = (size_t)(id + 1);
    if (index >= devices->capacity) {
        size_t wanted = index + 8;
        mp_device_t **larger =
            mp_realloc(devices->at, wanted * sizeof(*larger));
        if (larger == NULL) {
            return NULL;
        }
        memset(larger + devices->capacity, 0,
               (wanted - devices->capacity) * sizeof(*larger));
        devices->at = larger;
        devices->capacity = wanted;
    }
    mp_device_t *device = mp_calloc(1, sizeof(*device));
    if (device == NULL) {
        return NULL;
    }
    device->id = id;
    device->live = mp_table_new(1024);
    device->segments = mp_ranges_new();
    if (device->live == NULL || device->segments == NULL) {
        device_free(device);
        return NULL;
    }
    devices->at[index] = device;
    return device;
}

/* ---- scopes ------------------------------------------------------------- */

mp_status_t
mp_devices_scope_open(mp_devices_t *devices, mp_scope_t *scope)
{
    if (devices->open_scopes == UINT64_MAX) {
        return MP_ERR_FULL;
    }
    uint32_t bit = (uint32_t)__builtin_ctzll(~devices->open_scopes);
    devices->open_scopes |= (uint64_t)1 << bit;
    for (size_t i = 0; i < devices->capacity; i++) {
        mp_device_t *device = devices->at[i];
        if (device == NULL) {
            continue;
        }
        device->scopes[bit] = device->stats;
#define X(name, text)                                                         \
    device->scopes[bit].name.peak = device->stats.name.current;
        MP_STAT_LIST(X)
#undef X
    }
    *scope = bit;
    return MP_OK;
}

mp_status_t
mp_devices_scope_peak(const mp_devices_t *devices, mp_scope_t scope,
                      int16_t device, mp_device_stats_t *stats)
{
    const mp_device_t *found = mp_devices_find(devices, device);
    if (scope >= MP_MAX_SCOPES ||
        (devices->open_scopes & ((uint64_t)1 << scope)) == 0 ||
        found == NULL) {
        return MP_ERR_ARG;
    }
    const mp_device_stats_t *begin = &found->scopes[scope];
#define X(name, text)                                                         \
    stats->name.current = found->stats.name.current;                          \
    stats->name.peak = begin->name.peak;                                      \
    stats->name.total = found->stats.name.total - begin->name.total;
    MP_STAT_LIST(X)
#undef X
    return MP_OK;
}

void
mp_devices_scope_close(mp_devices_t *devices, mp_scope_t scope)
{
    if (scope < MP_MAX_SCOPES) {
        devices->open_scopes &= ~((uint64_t)1 << scope);
        for (size_t i = 0; i < devices->capacity; i++) {
            if (devices->at[i] != NULL) {
                memset(&devices->at[i]->scopes[scope], 0,
                       sizeof(mp_device_stats_t));
            }
        }
    }
}
