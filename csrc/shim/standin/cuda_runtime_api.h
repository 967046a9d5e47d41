/* Stands in for CUDA's own header, which neither torch's CPU wheels nor their
 * dependencies bring along (and those of the CUDA wheels only in part).
 *
 * torch's allocator header declares functions that take CUDA's opaque handles
 * and defines inline functions that call CUDA.  The shim calls none of those,
 * so that names are all a compiler needs: nothing of this reaches the object
 * file.  Handles are pointers and enums are ints here as there, which is all
 * that the layout of torch's own classes depends on. */
#pragma once

#include <cstdint>

using cudaStream_t = struct CUstream_st *;
using cudaEvent_t = struct CUevent_st *;
using cudaGraph_t = struct CUgraph_st *;
using cudaUserObject_t = struct CUuserObject_st *;
using cudaHostFn_t = void (*)(void *);

enum cudaError {
    cudaSuccess = 0,
    cudaErrorNotReady = 600
};
using cudaError_t = cudaError;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
    cudaStreamCaptureStatusInvalidated = 2
};

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
};

enum cudaUserObjectFlags {
    cudaUserObjectNoDestructorSync = 1
};
enum cudaUserObjectRetainFlags {
    cudaGraphUserObjectMove = 1
};

/* Never called, so that their parameters do not matter. */
const char *cudaGetErrorString(...);
cudaError_t cudaDeviceGetStreamPriorityRange(...);
cudaError_t cudaGetLastError(...);
cudaError_t cudaGraphRetainUserObject(...);
cudaError_t cudaMemGetInfo(...);
cudaError_t cudaMemcpyAsync(...);
cudaError_t cudaStreamGetCaptureInfo(...);
cudaError_t cudaStreamGetCaptureInfo_v2(...);
cudaError_t cudaStreamGetPriority(...);
cudaError_t cudaStreamIsCapturing(...);
cudaError_t cudaStreamQuery(...);
cudaError_t cudaStreamSynchronize(...);
cudaError_t cudaThreadExchangeStreamCaptureMode(...);
cudaError_t cudaUserObjectCreate(...);
cudaError_t cudaUserObjectRelease(...);
