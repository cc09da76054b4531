// Reduction kernels: a tile of every source is combined in the first-level cache and leaves it
// once, with the loops of kernel_loops.h compiled for each instruction set.
#include "collectives/kernels.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "collectives/kernel_loops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HVD_AVX2 [[gnu::target("avx2,f16c")]]
#define HVD_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]]
#endif

namespace hvd {

namespace {

using namespace kernel_loops;

constexpr std::size_t kTileBytes = 4096;  // of the type that is computed in
constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kShortCopy = 512;  // bytes; below, only the call counts

using CombineTile = void (*)(void*, const void*, const void*, std::size_t);
using ScaleTile = void (*)(void*, const void*, double, std::size_t);
using ConvertTile = void (*)(void*, const void*, std::size_t);
using CopyLines = void (*)(std::byte*, const std::byte*, std::size_t);

// --- Compiled for each instruction set ----------------------------------------------------------

struct Baseline {
  template <class T, class Op>
  static void combine(void* to, const void* a, const void* b, std::size_t count) {
    combine_loop<T, Op>(to, a, b, count);
  }
  template <class T>
  static void scale(void* to, const void* from, double factor, std::size_t count) {
    scale_loop<T>(to, from, factor, count);
  }
  static void widen_float16(void* to, const void* from, std::size_t count) {
    widen_loop<float16_to_float>(to, from, count);
  }
  static void narrow_float16(void* to, const void* from, std::size_t count) {
    narrow_loop<float_to_float16>(to, from, count);
  }
  static void widen_bfloat16(void* to, const void* from, std::size_t count) {
    widen_loop<bfloat16_to_float>(to, from, count);
  }
  static void narrow_bfloat16(void* to, const void* from, std::size_t count) {
    narrow_loop<float_to_bfloat16>(to, from, count);
  }
  // Whole lines of 64 bytes: `to` lies on one, `bytes` is a multiple of 64.
  template <Store store>
  static void copy_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
    for (std::size_t i = 0; i < bytes; i += 16) {
      const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      auto* const at = reinterpret_cast<__m128i*>(to + i);
      store == Store::kStreaming ? _mm_stream_si128(at, part) : _mm_store_si128(at, part);
    }
#else
    std::memcpy(to, from, bytes);
#endif
  }
};

#if defined(__x86_64__)
struct Avx2 {
  template <class T, class Op>
  HVD_AVX2 static void combine(void* to, const void* a, const void* b, std::size_t count) {
    combine_loop<T, Op>(to, a, b, count);
  }
  template <class T>
  HVD_AVX2 static void scale(void* to, const void* from, double factor, std::size_t count) {
    scale_loop<T>(to, from, factor, count);
  }
  HVD_AVX2 static void widen_float16(void* to, const void* from, std::size_t count) {
    float* result = static_cast<float*>(to);
    const std::uint16_t* source = static_cast<const std::uint16_t*>(from);
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
      _mm256_storeu_ps(result + i, _mm256_cvtph_ps(halves));
    }
    widen_loop<float16_to_float>(result + i, source + i, count - i);
  }
  HVD_AVX2 static void narrow_float16(void* to, const void* from, std::size_t count) {
    std::uint16_t* result = static_cast<std::uint16_t*>(to);
    const float* source = static_cast<const float*>(from);
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
      const __m128i halves =
          _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(result + i), halves);
    }
    narrow_loop<float_to_float16>(result + i, source + i, count - i);
  }
  HVD_AVX2 static void widen_bfloat16(void* to, const void* from, std::size_t count) {
    widen_loop<bfloat16_to_float>(to, from, count);
  }
  HVD_AVX2 static void narrow_bfloat16(void* to, const void* from, std::size_t count) {
    narrow_loop<float_to_bfloat16>(to, from, count);
  }
  template <Store store>
  HVD_AVX2 static void copy_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += 32) {
      const __m256i part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
      auto* const at = reinterpret_cast<__m256i*>(to + i);
      store == Store::kStreaming ? _mm256_stream_si256(at, part) : _mm256_store_si256(at, part);
    }
  }
};

struct Avx512 : Avx2 {  // float16 conversions gain nothing from wider registers
  template <class T, class Op>
  HVD_AVX512 static void combine(void* to, const void* a, const void* b, std::size_t count) {
    combine_loop<T, Op>(to, a, b, count);
  }
  template <class T>
  HVD_AVX512 static void scale(void* to, const void* from, double factor, std::size_t count) {
    scale_loop<T>(to, from, factor, count);
  }
  HVD_AVX512 static void widen_bfloat16(void* to, const void* from, std::size_t count) {
    widen_loop<bfloat16_to_float>(to, from, count);
  }
  HVD_AVX512 static void narrow_bfloat16(void* to, const void* from, std::size_t count) {
    narrow_loop<float_to_bfloat16>(to, from, count);
  }
  template <Store store>
  HVD_AVX512 static void copy_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += 64) {
      const __m512i line = _mm512_loadu_si512(from + i);
      auto* const at = reinterpret_cast<__m512i*>(to + i);
      store == Store::kStreaming ? _mm512_stream_si512(at, line) : _mm512_store_si512(at, line);
    }
  }
};
#endif

// --- Tables -------------------------------------------------------------------------------------

// The kernels of one type; `combine` is indexed by ReduceOp.
struct TypeKernels {
  std::size_t size = 0;         // bytes of an element in memory
  std::size_t wide_size = 0;    // bytes of an element in the type that is computed in
  ConvertTile widen = nullptr;  // nullptr: computed in the type of the memory
  ConvertTile narrow = nullptr;
  ScaleTile scale = nullptr;
  std::array<CombineTile, 6> combine{};
};

struct KernelTable {
  std::array<TypeKernels, kDataTypeCount> types{};
  std::array<CopyLines, 2> copy_lines{};  // by Store
};

template <class Isa, class T>
TypeKernels number_kernels() {
  TypeKernels kernels{sizeof(T), sizeof(T), nullptr, nullptr, Isa::template scale<T>, {}};
  const auto set = [&](ReduceOp op, CombineTile f) { kernels.combine[static_cast<int>(op)] = f; };
  set(ReduceOp::kSum, Isa::template combine<T, Sum>);
  set(ReduceOp::kAverage, Isa::template combine<T, Sum>);  // the factor is in postscale
  set(ReduceOp::kMin, Isa::template combine<T, Min>);
  set(ReduceOp::kMax, Isa::template combine<T, Max>);
  set(ReduceOp::kProduct, Isa::template combine<T, Product>);
  return kernels;
}

template <class Isa>
TypeKernels bool_kernels() {
  TypeKernels kernels = number_kernels<Isa, std::uint8_t>();
  const auto set = [&](ReduceOp op, CombineTile f) { kernels.combine[static_cast<int>(op)] = f; };
  set(ReduceOp::kSum, Isa::template combine<std::uint8_t, LogicalOr>);
  set(ReduceOp::kMax, Isa::template combine<std::uint8_t, LogicalOr>);
  set(ReduceOp::kProduct, Isa::template combine<std::uint8_t, LogicalAnd>);
  set(ReduceOp::kMin, Isa::template combine<std::uint8_t, LogicalAnd>);
  return kernels;
}

template <class Isa>
TypeKernels half_kernels(ConvertTile widen, ConvertTile narrow) {
  TypeKernels kernels = number_kernels<Isa, float>();
  kernels.size = sizeof(std::uint16_t);
  kernels.widen = widen;
  kernels.narrow = narrow;
  return kernels;
}

template <class Isa>
KernelTable make_table() {
  KernelTable table;
  const auto set = [&](DataType dtype, TypeKernels k) { table.types[static_cast<int>(dtype)] = k; };
  set(DataType::kUint8, number_kernels<Isa, std::uint8_t>());
  set(DataType::kInt8, number_kernels<Isa, std::int8_t>());
  set(DataType::kUint16, number_kernels<Isa, std::uint16_t>());
  set(DataType::kInt16, number_kernels<Isa, std::int16_t>());
  set(DataType::kInt32, number_kernels<Isa, std::int32_t>());
  set(DataType::kInt64, number_kernels<Isa, std::int64_t>());
  set(DataType::kFloat32, number_kernels<Isa, float>());
  set(DataType::kFloat64, number_kernels<Isa, double>());
  set(DataType::kBool, bool_kernels<Isa>());
  set(DataType::kFloat16, half_kernels<Isa>(Isa::widen_float16, Isa::narrow_float16));
  set(DataType::kBfloat16, half_kernels<Isa>(Isa::widen_bfloat16, Isa::narrow_bfloat16));
  // Sums and real factors act on the real and the imaginary part alike: `reduce` doubles the count.
  set(DataType::kComplex64, number_kernels<Isa, float>());
  set(DataType::kComplex128, number_kernels<Isa, double>());
  table.copy_lines = {Isa::template copy_lines<Store::kOrdinary>,
                      Isa::template copy_lines<Store::kStreaming>};
  return table;
}

const KernelTable& table_of([[maybe_unused]] InstructionSet set) {
#if defined(__x86_64__)
  static const KernelTable avx2 = make_table<Avx2>();
  static const KernelTable avx512 = make_table<Avx512>();
  if (set == InstructionSet::kAvx512) return avx512;
  if (set == InstructionSet::kAvx2) return avx2;
#endif
  static const KernelTable baseline = make_table<Baseline>();
  return baseline;
}

std::atomic<const KernelTable*>& current_table() {
  static std::atomic<const KernelTable*> table{&table_of(best_instruction_set())};
  return table;
}

const KernelTable& kernels() { return *current_table().load(std::memory_order_relaxed); }

alignas(64) constexpr std::byte kZeros[kTileBytes]{};

// --- One tile of all sources --------------------------------------------------------------------

struct Scratch {
  alignas(64) std::byte sum[kTileBytes];
  alignas(64) std::byte next[kTileBytes];
  alignas(64) std::byte narrow[kTileBytes];
};

std::size_t within_line(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kLineBytes;
}

// The source at `offset`, widened and prescaled into `space` where needed.
const void* prepare(const TypeKernels& k, double prescale, const std::byte* source,
                    std::size_t offset, std::size_t count, std::byte* space) {
  if (source == nullptr) return kZeros;  // zero in every type, before and after scaling
  const void* at = source + offset;
  if (k.widen != nullptr) {
    k.widen(space, at, count);
    at = space;
  }
  if (prescale != 1.0) {
    k.scale(space, at, prescale, count);
    at = space;
  }
  return at;
}

void emit(Sink sink, std::size_t offset, const void* tile, std::size_t bytes) {
  if (sink.address == nullptr || sink.address + offset == tile) return;
  copy(sink.address + offset, static_cast<const std::byte*>(tile), bytes, sink.store);
}

}  // namespace

void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::size_t count, Sink first, Sink second) {
  const TypeKernels& k = kernels().types[static_cast<int>(reduction.dtype)];
  const CombineTile combine = k.combine[static_cast<int>(reduction.op)];
  if (reduction.dtype == DataType::kComplex64 || reduction.dtype == DataType::kComplex128)
    count *= 2;

  // Two sources may be combined straight into memory; with more, the sink could be a source that is
  // still to be read.
  const bool direct = first.address != nullptr && first.store == Store::kOrdinary &&
                      sources.size() == 2 && k.narrow == nullptr;
  // All tiles but the first end where a line of the sink ends: a store across two lines costs two.
  const std::size_t tile = kTileBytes / k.wide_size;
  const std::size_t shorter = first.address == nullptr ? 0 : within_line(first.address) / k.size;
  Scratch scratch;
  std::size_t now = 0;
  for (std::size_t done = 0; done < count; done += now) {
    now = std::min(done == 0 ? tile - shorter : tile, count - done);
    const std::size_t offset = done * k.size;
    std::byte* const sum = direct ? first.address + offset : scratch.sum;
    const void* result = prepare(k, reduction.prescale, sources[0], offset, now, scratch.sum);
    for (std::size_t s = 1; s < sources.size(); ++s) {
      const void* const next =
          prepare(k, reduction.prescale, sources[s], offset, now, scratch.next);
      combine(sum, result, next, now);
      result = sum;
    }
    if (reduction.postscale != 1.0) {
      k.scale(sum, result, reduction.postscale, now);
      result = sum;
    }
    if (k.narrow != nullptr) {
      k.narrow(scratch.narrow, result, now);
      result = scratch.narrow;
    }
    emit(first, offset, result, now * k.size);
    emit(second, offset, result, now * k.size);
  }
}

void copy(std::byte* to, const std::byte* from, std::size_t bytes, Store store) {
  if (bytes == 0) return;
  // The C library is the fastest between ends that lie alike within a line, and slow between others.
  const bool alike = within_line(to) == within_line(from) || bytes < kShortCopy;
  if (store == Store::kOrdinary && alike) {
    std::memmove(to, from, bytes);
    return;
  }
  const std::size_t head = std::min(bytes, (kLineBytes - within_line(to)) % kLineBytes);
  const std::size_t body = (bytes - head) / kLineBytes * kLineBytes;
  std::memcpy(to, from, head);
  kernels().copy_lines[static_cast<std::size_t>(store)](to + head, from + head, body);
  std::memcpy(to + head + body, from + head + body, bytes - head - body);
}

void finish_streaming() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

InstructionSet best_instruction_set() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return InstructionSet::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
    return InstructionSet::kAvx2;
#endif
  return InstructionSet::kBaseline;
}

void use_instruction_set(InstructionSet set) {
  current_table().store(&table_of(std::min(set, best_instruction_set())),
                        std::memory_order_relaxed);
}

}  // namespace hvd
