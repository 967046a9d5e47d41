/* hook_modules.c - the modules and the optimizers that a thread is inside of:
 * in and out, as hooks of Python's side tell. */
#include "hook.h"
#include "hook_place.h"
#include "hook_thread.h"

static void
write_mark(mp_context_t *context, uint8_t kind, uint32_t module, uint32_t op)
{
    mp_event_t event = {.kind = kind, .device = MP_DEVICE_CPU};
    mp_place_fill(context, &event);
    event.op = op;
    if (kind == MP_EVENT_MODULE_BEGIN || kind == MP_EVENT_MODULE_END) {
        event.module = module;
        const mp_shim_api_t *shim = mp_hook_shim();
        if (shim != NULL) {
            event.addr = shim->sequence_peek();
            event.stream = shim->logical_thread();
        }
    }
    (void)mp_hook_append(&event, 1);
}

void
mp_hook_module_begin(uint32_t module)
{
    mp_context_t *context = mp_context_get();
    if (context == NULL || mp_hook_wanted() == 0) {
        return;
    }
    if (context->module_depth > 0 && context->modules[0] == module) {
        /* torch skips the hooks of a forward that a KeyboardInterrupt (or
         * any BaseException) left; the root's next call starts afresh. */
        mp_hook_module_end(module);
        context->module_depth = 0;
    }
    if (context->module_depth < MP_MAX_MODULES) {
        context->modules[context->module_depth] = module;
    }
    context->module_depth++;
    write_mark(context, MP_EVENT_MODULE_BEGIN, module, MP_NO_INDEX);
}

void
mp_hook_module_end(uint32_t module)
{
    mp_context_t *context = mp_this_thread;
    if (context == NULL || context->module_depth == 0) {
        return;
    }
    uint32_t depth = context->module_depth;
    if (depth > MP_MAX_MODULES) {
        context->module_depth--;
    }
    else {
        /* An exception that skips hooks leaves modules open: leave them
         * with the first one that does end. */
        uint32_t i = depth;
        while (i > 0 && context->modules[i - 1] != module) {
            i--;
        }
        if (i == 0) {
            return;
        }
        context->module_depth = i - 1;
    }
    if (mp_hook_wanted() != 0) {
        write_mark(context, MP_EVENT_MODULE_END, module, MP_NO_INDEX);
    }
}

bool
mp_hook_in_module(void)
{
    const mp_context_t *context = mp_context_get();
    return context != NULL && context->module_depth > 0;
}

void
mp_hook_optimizer_begin(uint32_t name)
{
    mp_context_t *context = mp_context_get();
    if (context == NULL || mp_hook_wanted() == 0) {
        return;
    }
    if (context->optimizer_depth > 0 && context->optimizer_name == name) {
        context->optimizer_depth = 0; /* an exception left its last step */
    }
    mp_ops_describe(context);
    if (context->optimizer_depth++ == 0) {
        context->optimizer_name = name;
        context->optimizer_modules = context->module_depth;
        context->optimizer_backwards = context->backward_depth;
        context->optimizer_net = 0;
    }
    write_mark(context, MP_EVENT_OPTIMIZER_BEGIN, MP_NO_INDEX, name);
}

int64_t
mp_hook_optimizer_end(uint32_t name)
{
    mp_context_t *context = mp_this_thread;
    if (context == NULL || context->optimizer_depth == 0) {
        return 0;
    }
    if (mp_hook_wanted() != 0) {
        write_mark(context, MP_EVENT_OPTIMIZER_END, MP_NO_INDEX, name);
    }
    context->optimizer_depth--;
    return context->optimizer_net;
}
