// horovod.h: the C ABI by which pieces that are loaded separately (the TensorFlow plug-in, handlers of
// XLA custom calls) reach the engine of this process.
//
// The compiled module hands out one table of functions, `hvd_api`; nothing is resolved by the loader.
// All functions may be called from any thread, without Python's lock. Nothing throws.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVD_API_VERSION 1

// How a call ended. Values are those of hvd::StatusCode.
enum {
  HVD_OK = 0,
  HVD_INVALID_ARGUMENT = 1,  // the caller's mistake; nothing was submitted
  HVD_MISMATCH = 2,          // ranks disagreed about the operation; the job goes on
  HVD_ABORTED = 3,           // a peer died, or the job was shut down
  HVD_NOT_INITIALIZED = 4,   // hvd.init() has not been called
  HVD_UNSUPPORTED = 5,  // the operator is not offered for this collective; nothing was submitted
};

// One tensor: dense, in host memory, in C order.
typedef struct hvd_tensor {
  const char* name;      // equal on all ranks for the same operation
  const void* input;     // stays unchanged until the operation is done
  void* output;          // as large as the input, may be the input; NULL: `allocate` is asked
  const int64_t* shape;  // of the input
  int32_t dimensions;
  int32_t dtype;  // hvd::DataType
} hvd_tensor;

typedef struct hvd_outcome {
  int32_t code;
  const char* text;                // why it failed; lives as long as the outcome
  const int64_t* received_splits;  // alltoall: rows from each rank of the set
  int32_t received_split_count;
  int64_t value;  // join: the rank that joined last
} hvd_outcome;

// One operation, or one group of operations that are executed together.
typedef struct hvd_call {
  int32_t collective;  // hvd::Collective: allreduce to reducescatter, or join
  int32_t op;          // hvd::ReduceOp; Average divides by the size of the process set
  double prescale;
  double postscale;
  int32_t root;  // broadcast: global rank
  int32_t process_set;
  const hvd_tensor* tensors;
  int32_t tensor_count;
  const char* group;      // name of the group; NULL: the call is one tensor, or none (join)
  const int64_t* splits;  // alltoall: rows for each rank of the set; NULL: equal parts
  int32_t split_count;
  int32_t cacheable;  // 0: the name never comes again
  // The caller comes to `wait` at once; then `done` is NULL. Otherwise `done` is called exactly once if
  // the submission succeeded: on a thread of the engine or of another caller, where it must not block,
  // submit or run code of a framework. The outcome is valid during the call.
  void (*done)(void* user, const hvd_outcome* outcome);
  // Memory for the output of `tensors[index]` once its shape is known; NULL when there is none. Called at
  // most once per tensor, before the operation is done, on a thread of the engine.
  void* (*allocate)(void* user, int32_t index, const int64_t* shape, int32_t dimensions,
                    size_t bytes);
  void* user;
} hvd_call;

typedef struct hvd_operation hvd_operation;

enum { HVD_RANK, HVD_SIZE, HVD_LOCAL_RANK, HVD_LOCAL_SIZE };

typedef struct hvd_api {
  int32_t version;
  // Never blocks. Not HVD_OK: nothing was submitted and `error` says why. `operation` may be NULL when
  // `done` is given; otherwise the caller owes it to `wait`.
  int32_t (*submit)(const hvd_call* call, hvd_operation** operation, char* error,
                    size_t error_bytes);
  // Blocks until the operation is done, hands its outcome to `take`, and forgets the operation.
  void (*wait)(hvd_operation* operation, void (*take)(void* user, const hvd_outcome* outcome),
               void* user);
  // HVD_RANK and so on of this process; -1 when Horovod is not initialised.
  int32_t (*identity)(int32_t what);
  // Size of a process set and this process's rank in it (-1: not a member). HVD_INVALID_ARGUMENT when
  // there is no such set, HVD_NOT_INITIALIZED without engine.
  int32_t (*process_set)(int32_t id, int32_t* set_rank, int32_t* size);
} hvd_api;

#ifdef __cplusplus
}  // extern "C"
#endif
