/* Stands in for CUDA's own header; see cuda_runtime_api.h beside it. */
#pragma once

#include "cuda_runtime_api.h"
