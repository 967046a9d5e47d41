/* torch_shim.cpp - torch's C++ hooks, turned into calls of the core's table.
 *
 * Compiled against one torch release; knows nothing of Python and does not
 * link with CUDA.  It decides nothing: what a fact means is the core's affair.
 *
 * Everything here is immortal.  torch has no way to take an allocator tracker
 * back, running ops keep their copy of a removed callback, and blocks keep
 * their deleter for as long as they live, past exit handlers too: nothing
 * here may have a destructor that runs at exit, and the library is opened
 * with RTLD_NODELETE.
 *
 * Releases differ.  What differs is detected (by member, by header), never
 * asked of TORCH_VERSION: nightlies and vendor builds mix features. */
#include "shim_api.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <atomic>
#include <c10/core/Allocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <exception>
#include <memory>
#include <mutex>
#include <torch/csrc/autograd/function.h>

#if __has_include(<torch/headeronly/version.h>) /* torch >= 2.9 */
#include <torch/headeronly/version.h>
#else
#include <torch/version.h>
#endif

/* The whole version string and the git hash of a torch that is no plain
 * release; build.py gives it. */
#ifndef MP_BUILD_STAMP
#define MP_BUILD_STAMP ""
#endif

/* libc++ has one string ABI and no such macro. */
#ifdef _GLIBCXX_USE_CXX11_ABI
#define MP_CXX11_ABI _GLIBCXX_USE_CXX11_ABI
#else
#define MP_CXX11_ABI 1
#endif

namespace {

/* Written once by mp_shim_entry, before any hook is installed. */
const mp_core_api_t *core = nullptr;

/* Guards installing and removing of the CPU allocator and the op callbacks.
 * No hook takes it.  (Its destructor does nothing.) */
std::mutex install_mutex;

/* Guards attaching to CUDA.  Not the same: attaching waits for each device's
 * lock, whose holder may wait for the GIL, whose holder may be installing. */
std::mutex attach_mutex;

inline bool
recording() noexcept
{
    return __atomic_load_n(core->active, __ATOMIC_RELAXED) != 0;
}

/* c10::Error's text goes on for pages of C++ stack: keep its first line. */
void
write_error(char *error, size_t error_size, const char *text) noexcept
{
    if (error != nullptr && error_size > 0) {
        int length = static_cast<int>(std::strcspn(text, "\n"));
        std::snprintf(error, error_size, "%.*s", length, text);
    }
}

/* Runs ACTION, which may throw; nothing leaves as a C++ exception.  Returns
 * what ACTION returned, or FAILED with the reason in ERROR. */
template <class Result, class Action>
Result
guarded(Result failed, char *error, size_t error_size, Action action) noexcept
{
    try {
        return action();
    }
    catch (const c10::Error &problem) {
        write_error(error, error_size, problem.what_without_backtrace());
    }
    catch (const std::exception &problem) {
        write_error(error, error_size, problem.what());
    }
    catch (...) {
        write_error(error, error_size, "unknown C++ exception");
    }
    return failed;
}

/* ---- CUDA caching allocator -------------------------------------------- */

using c10::cuda::CUDACachingAllocator::CUDAAllocator;
using c10::cuda::CUDACachingAllocator::TraceEntry;

/* Guarded by attach_mutex. */
CUDAAllocator *attached = nullptr;

uint8_t
kind_of(TraceEntry::Action action) noexcept
{
    switch (action) {
    case TraceEntry::ALLOC:
        return MP_EVENT_ALLOC;
    case TraceEntry::FREE_REQUESTED:
        return MP_EVENT_FREE_REQUESTED;
    case TraceEntry::FREE_COMPLETED:
        return MP_EVENT_FREE_COMPLETED;
    case TraceEntry::SEGMENT_ALLOC:
        return MP_EVENT_SEGMENT_ALLOC;
    case TraceEntry::SEGMENT_FREE:
        return MP_EVENT_SEGMENT_FREE;
    case TraceEntry::SEGMENT_MAP:
        return MP_EVENT_SEGMENT_MAP;
    case TraceEntry::SEGMENT_UNMAP:
        return MP_EVENT_SEGMENT_UNMAP;
    case TraceEntry::OOM:
        return MP_EVENT_OOM;
    case TraceEntry::SNAPSHOT:
        return MP_EVENT_SNAPSHOT;
    default: /* ANNOTATE (2.14), and what later releases add */
        return MP_EVENT_OTHER;
    }
}

/* The pool id came with 2.8. */
template <class Entry>
auto
copy_pool(const Entry &entry, mp_memory_fact_t *fact, int) noexcept
    -> decltype(static_cast<void>(entry.mempool_))
{
    fact->pool_first = entry.mempool_.first;
    fact->pool_second = entry.mempool_.second;
}

template <class Entry>
void
copy_pool(const Entry &, mp_memory_fact_t *fact, long) noexcept
{
    fact->pool_first = 0;
    fact->pool_second = 0;
}

/* Called with the device's allocator lock held. */
void
on_trace(const TraceEntry &entry) noexcept
{
    if (!recording()) {
        return;
    }
    mp_memory_fact_t fact;
    fact.addr = entry.addr_;
    fact.size = entry.size_;
    /* cudaStream_t, void * from 2.11 */
    fact.stream = reinterpret_cast<uintptr_t>(entry.stream_);
    copy_pool(entry, &fact, 0);
    fact.device = static_cast<int16_t>(entry.device_);
    fact.kind = kind_of(entry.action_);
    core->memory(&fact);
}

/* torch's own variable, looked up at run time: a link with libc10_cuda would
 * tie this file to CUDA builds of torch. */
#define ALLOCATOR_SYMBOL "_ZN3c104cuda20CUDACachingAllocator9allocatorE"

int
attach_cuda(char *error, size_t error_size) noexcept
{
    return guarded(2, error, error_size, [&]() -> int {
        std::lock_guard<std::mutex> lock(attach_mutex);
        void *library = dlopen("libc10_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
        if (library == nullptr) {
            write_error(error, error_size,
                        "this torch was built without CUDA");
            return 1;
        }
        using Variable = decltype(c10::cuda::CUDACachingAllocator::allocator);
        auto *variable =
            static_cast<Variable *>(dlsym(library, ALLOCATOR_SYMBOL));
        CUDAAllocator *current =
            variable == nullptr ? nullptr : variable->load();
        dlclose(library); /* torch keeps it loaded */
        if (current == nullptr) {
            write_error(error, error_size,
                        "libc10_cuda.so has no CUDA caching allocator");
            return 2;
        }
        if (current == attached) {
            return 0;
        }
        if (attached != nullptr) {
            write_error(error, error_size,
                        "the CUDA allocator was replaced after memprof had "
                        "attached to it");
            return 2;
        }
        /* Before, torch would attach to no device and not say so. */
        if (!current->initialized()) {
            write_error(error, error_size, "CUDA is not initialised yet");
            return 2;
        }
        current->attachAllocatorTraceTracker(&on_trace);
        attached = current;
        return 0;
    });
}

/* ---- CPU allocator ------------------------------------------------------ */

/* What our deleter calls: the deleter of the allocator that was wrapped
 * first.  Set once; an allocator with another one is refused. */
c10::DeleterFnPtr inner_deleter = nullptr;

void
free_cpu(void *pointer)
{
    /* First: once freed, another thread may be given the same address. */
    core->cpu_free(pointer);
    inner_deleter(pointer);
}

template <class Allocator>
auto
inner_copy(const Allocator *inner, void *to, const void *from, size_t bytes,
           int) -> decltype(inner->copy_data(to, from, bytes))
{
    inner->copy_data(to, from, bytes);
}

template <class Allocator>
void
inner_copy(const Allocator *, void *to, const void *from, size_t bytes, long)
{
    std::memcpy(to, from, bytes);
}

template <class Allocator>
auto
inner_is_simple(const Allocator *inner, const c10::DataPtr &data, int)
    -> decltype(inner->is_simple_data_ptr(data))
{
    return inner->is_simple_data_ptr(data);
}

template <class Allocator>
bool
inner_is_simple(const Allocator *, const c10::DataPtr &data, long)
{
    return data.get() == data.get_context();
}

/* No `override` on purpose: allocate() is const up to 2.3 and not const
 * later, copy_data() came with 2.4.  The variants that are not torch's are
 * plain members that nobody calls. */
class CpuAllocator final : public c10::Allocator {
  public:
    c10::DataPtr allocate(size_t bytes)
    {
        return observed(bytes);
    }

    c10::DataPtr allocate(size_t bytes) const
    {
        return observed(bytes);
    }

    /* Also right for blocks that were passed through untouched: the core
     * hears of an address it does not know. */
    c10::DeleterFnPtr raw_deleter() const
    {
        return &free_cpu;
    }

    void copy_data(void *to, const void *from, size_t bytes) const
    {
        inner_copy(inner(), to, from, bytes, 0);
    }

    bool is_simple_data_ptr(const c10::DataPtr &data) const
    {
        return inner_is_simple(inner(), data, 0);
    }

    c10::Allocator *inner() const noexcept
    {
        return inner_.load(std::memory_order_relaxed);
    }

    /* Storages that were made through us still come here to grow after we
     * were removed, so the inner allocator is replaced but never forgotten. */
    void wrap(c10::Allocator *inner) noexcept
    {
        inner_.store(inner);
    }

    /* Whether an allocation of TOP comes through here. */
    bool is_below(c10::Allocator *top)
    {
        reached_.store(false);
        probing_.store(true);
        c10::DataPtr data = top->allocate(1);
        probing_.store(false);
        return reached_.load();
    }

  private:
    c10::DataPtr observed(size_t bytes) const
    {
        c10::DataPtr data = inner()->allocate(bytes);
        if (C10_UNLIKELY(probing_.load(std::memory_order_relaxed))) {
            reached_.store(true);
        }
        /* Empty, or with a context of its own: none of ours. */
        void *pointer = data.get();
        if (recording() && pointer != nullptr &&
            pointer == data.get_context() &&
            data.compare_exchange_deleter(inner_deleter, &free_cpu)) {
            core->cpu_alloc(pointer, bytes);
        }
        return data;
    }

    std::atomic<c10::Allocator *> inner_{nullptr};
    mutable std::atomic<bool> probing_{false};
    mutable std::atomic<bool> reached_{false};
};

/* Guarded by install_mutex. */
bool cpu_installed = false;
uint8_t cpu_priority = 0;

/* Never destroyed: torch allocates and frees in its own exit handlers. */
CpuAllocator &
cpu_allocator()
{
    static CpuAllocator *const allocator = new CpuAllocator();
    return *allocator;
}

/* torch lets a later allocator replace one of the same or a lower priority
 * and does not tell the current one's.  The lowest that is accepted is it, so
 * that whoever could replace torch's allocator can still replace ours. */
bool
set_cpu_allocator(c10::Allocator *allocator)
{
    for (int priority = 0; priority <= UINT8_MAX; priority++) {
        c10::SetAllocator(c10::DeviceType::CPU, allocator,
                          static_cast<uint8_t>(priority));
        if (c10::GetAllocator(c10::DeviceType::CPU) == allocator) {
            cpu_priority = static_cast<uint8_t>(priority);
            return true;
        }
    }
    return false;
}

int
install_cpu(char *error, size_t error_size) noexcept
{
    return guarded(2, error, error_size, [&]() -> int {
        std::lock_guard<std::mutex> lock(install_mutex);
        CpuAllocator &ours = cpu_allocator();
        c10::Allocator *current = c10::GetAllocator(c10::DeviceType::CPU);
        /* Somebody may have wrapped ours: to wrap that in turn would be a
         * circle. */
        if (current == &ours || (cpu_installed && ours.is_below(current))) {
            return 0;
        }
        c10::DeleterFnPtr deleter = current->raw_deleter();
        if (deleter == nullptr) {
            write_error(error, error_size,
                        "the CPU allocator in use has no plain deleter");
            return 2;
        }
        if (inner_deleter != nullptr && inner_deleter != deleter) {
            write_error(error, error_size,
                        "the CPU allocator in use is another one than at the "
                        "first recording of this process");
            return 2;
        }
        inner_deleter = deleter;
        ours.wrap(current);
        if (!set_cpu_allocator(&ours)) {
            write_error(error, error_size,
                        "torch did not accept another CPU allocator");
            return 2;
        }
        cpu_installed = true;
        return 0;
    });
}

bool
remove_cpu() noexcept
{
    return guarded(false, nullptr, 0, [&]() -> bool {
        std::lock_guard<std::mutex> lock(install_mutex);
        CpuAllocator &ours = cpu_allocator();
        if (cpu_installed &&
            c10::GetAllocator(c10::DeviceType::CPU) == &ours) {
            c10::SetAllocator(c10::DeviceType::CPU, ours.inner(),
                              cpu_priority);
            cpu_installed = false;
        }
        return !cpu_installed;
    });
}

/* The storage's DataPtr as it is: mutable_data_ptr() would make a private
 * copy of copy-on-write memory. */
template <class Storage>
auto
data_ptr_of(Storage *storage, int)
    -> decltype(storage->_mutable_data_ptr_no_checks())
{
    return storage->_mutable_data_ptr_no_checks();
}

/* Old torch: only called for plain memory, which has nothing to copy. */
template <class Storage>
c10::DataPtr &
data_ptr_of(Storage *storage, long)
{
    return storage->mutable_data_ptr();
}

bool
adopt_cpu(void *storage_address, void **pointer, size_t *bytes) noexcept
{
    return guarded(false, nullptr, 0, [&]() -> bool {
        auto *storage = static_cast<c10::StorageImpl *>(storage_address);
        /* Throws for fake tensors, whose memory must not be looked at, and
         * nbytes() for symbolic sizes. */
        const c10::DataPtr &seen = storage->data_ptr();
        size_t size = storage->nbytes();
        c10::DeleterFnPtr deleter = seen.get_deleter();
        if (seen.get() == nullptr || seen.get() != seen.get_context() ||
            inner_deleter == nullptr ||
            (deleter != inner_deleter && deleter != &free_cpu)) {
            return false;
        }
        if (deleter != &free_cpu &&
            !data_ptr_of(storage, 0)
                 .compare_exchange_deleter(inner_deleter, &free_cpu)) {
            return false;
        }
        *pointer = seen.get();
        *bytes = size;
        return true;
    });
}

/* ---- ops ---------------------------------------------------------------- */

/* Guarded by install_mutex. */
at::CallbackHandle ops_handle = at::INVALID_CALLBACK_HANDLE;
bool ops_outputs = false;

mp_op_scope_t
scope_of(at::RecordScope scope) noexcept
{
    return scope == at::RecordScope::USER_SCOPE ? MP_OP_SCOPE_USER
                                                : MP_OP_SCOPE_FUNCTION;
}

std::unique_ptr<at::ObserverContext>
on_op_begin(const at::RecordFunction &function) noexcept
{
    if (recording()) {
        core->op_begin(&function, scope_of(function.scope()));
    }
    return nullptr;
}

/* On whichever thread ends it, and perhaps long after remove_ops(). */
void
on_op_end(const at::RecordFunction &function, at::ObserverContext *) noexcept
{
    core->op_end(&function);
}

/* Tell of a tensor that has plain memory of its own.  Neither fake and
 * functional tensors (their memory is none), nor sparse and nested ones
 * (several), nor those of Python subclasses (the ops inside have the plain
 * ones). */
void
tell_tensor(const at::Tensor &tensor)
{
    if (!tensor.defined()) {
        return;
    }
    const c10::TensorImpl *impl = tensor.unsafeGetTensorImpl();
    if (impl->key_set().has_any(c10::DispatchKeySet(
            {c10::DispatchKey::Python, c10::DispatchKey::Functionalize})) ||
        impl->has_symbolic_sizes_strides() ||
        impl->layout() != c10::kStrided || !impl->has_storage() ||
        !(impl->is_cuda() || impl->is_cpu()) ||
        impl->key_set().has(c10::DispatchKey::NestedTensorCPU) ||
        impl->key_set().has(c10::DispatchKey::NestedTensorCUDA)) {
        return;
    }
    const c10::StorageImpl *storage =
        impl->unsafe_storage().unsafeGetStorageImpl();
    mp_tensor_fact_t fact;
    fact.addr = reinterpret_cast<uintptr_t>(storage->data_ptr().get());
    if (fact.addr == 0) {
        return;
    }
    const c10::IntArrayRef sizes = impl->sizes();
    const c10::ScalarType type = c10::typeMetaToScalarType(impl->dtype());
    fact.sizes = sizes.data();
    fact.dimensions = sizes.size();
    fact.item_size = impl->itemsize();
    fact.scalar = c10::toString(type);
    fact.device = impl->is_cuda()
                      ? static_cast<int16_t>(impl->device().index())
                      : static_cast<int16_t>(MP_DEVICE_CPU);
    core->tensor(&fact);
}

void
tell_output(const c10::IValue &value)
{
    if (value.isTensor()) {
        tell_tensor(value.toTensor());
    }
    else if (value.isTensorList()) {
        for (const c10::IValue &item : value.toListRef()) {
            tell_tensor(item.toTensor());
        }
    }
}

/* Installed where outputs are asked for.  torch keeps them until this op's
 * end, as its caller does anyway; no reference is taken here. */
void
on_op_end_outputs(const at::RecordFunction &function,
                  at::ObserverContext *) noexcept
{
    if (recording() && core->op_wants_outputs(&function)) {
        for (const c10::IValue &value : function.outputs()) {
            /* A tensor that throws when looked at is passed over. */
            guarded(0, nullptr, 0, [&]() -> int {
                tell_output(value);
                return 0;
            });
        }
    }
    core->op_end(&function);
}

void
describe_op(const void *op, mp_op_fact_t *fact) noexcept
{
    auto *function = static_cast<const at::RecordFunction *>(op);
    fact->name = function->name();
    fact->sequence = function->seqNr();
    fact->thread = function->threadId();
}

/* What the engine runs on this thread.  Not the BACKWARD_FUNCTION callbacks:
 * for those torch demangles the name of each node, whether anybody reads it
 * or not.  Node::name() is never called: for a node written in Python it
 * takes the GIL. */
bool
current_node(mp_node_fact_t *fact) noexcept
{
    auto node = torch::autograd::get_current_node();
    if (node == nullptr) {
        return false;
    }
    fact->sequence = static_cast<int64_t>(node->sequence_nr());
    fact->thread = node->thread_id();
    return true;
}

void
drop_ops_callback()
{
    if (ops_handle != at::INVALID_CALLBACK_HANDLE) {
        at::removeCallback(ops_handle);
        ops_handle = at::INVALID_CALLBACK_HANDLE;
    }
}

int
install_ops(bool outputs, char *error, size_t error_size) noexcept
{
    return guarded(2, error, error_size, [&]() -> int {
        std::lock_guard<std::mutex> lock(install_mutex);
        if (ops_handle != at::INVALID_CALLBACK_HANDLE &&
            ops_outputs == outputs) {
            return 0;
        }
        drop_ops_callback();
        ops_handle = at::addGlobalCallback(
            at::RecordFunctionCallback(
                &on_op_begin, outputs ? &on_op_end_outputs : &on_op_end)
                .needsOutputs(outputs)
                .scopes(
                    {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
        ops_outputs = outputs;
        return 0;
    });
}

void
remove_ops() noexcept
{
    guarded(0, nullptr, 0, [&]() -> int {
        std::lock_guard<std::mutex> lock(install_mutex);
        drop_ops_callback();
        return 0;
    });
}

/* ---- the calling thread --------------------------------------------------
 */

bool
grad_mode() noexcept
{
    return c10::GradMode::is_enabled();
}

uint64_t
sequence_peek() noexcept
{
    return at::sequence_number::peek();
}

uint64_t
logical_thread() noexcept
{
    return at::RecordFunction::currentThreadId();
}

const mp_shim_api_t shim_api = {
    MP_SHIM_API_VERSION, sizeof(mp_shim_api_t),
    TORCH_VERSION,       MP_BUILD_STAMP,
    MP_CXX11_ABI,        &describe_op,
    &current_node,       &grad_mode,
    &sequence_peek,      &logical_thread,
    &attach_cuda,        &install_cpu,
    &remove_cpu,         &adopt_cpu,
    &install_ops,        &remove_ops,
};

} /* namespace */

/* May meet a torch that this file was not compiled for: calls nothing of
 * torch, so that the loader can compare the stamps. */
extern "C" MP_EXPORT const mp_shim_api_t *
mp_shim_entry(const mp_core_api_t *table, char *error,
              size_t error_size) noexcept
{
    if (table->version != MP_SHIM_API_VERSION ||
        table->size < sizeof(mp_core_api_t)) {
        std::snprintf(error, error_size,
                      "memprof's core speaks version %u of the shim "
                      "interface, the shim %u",
                      table->version, MP_SHIM_API_VERSION);
        return nullptr;
    }
    if (core != nullptr && core != table) {
        write_error(error, error_size,
                    "another copy of memprof already uses this shim");
        return nullptr;
    }
    core = table;
    return &shim_api;
}
