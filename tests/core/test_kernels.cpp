// Reduction kernels against a scalar reference, and all instruction sets against each other.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/half.h"
#include "collectives/kernels.h"
#include "testing.h"

using namespace hvd;

namespace {

using Bytes = std::vector<std::byte>;

const std::vector<ReduceOp> kOps{ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                 ReduceOp::kProduct};

std::vector<InstructionSet> available_sets() {
  std::vector<InstructionSet> sets{InstructionSet::kBaseline};
  if (best_instruction_set() >= InstructionSet::kAvx2) sets.push_back(InstructionSet::kAvx2);
  if (best_instruction_set() >= InstructionSet::kAvx512) sets.push_back(InstructionSet::kAvx512);
  return sets;
}

struct UseBestAgain {
  ~UseBestAgain() { use_instruction_set(best_instruction_set()); }
};

// Any bits are fine for integers; floats get numbers, infinities, NaN and both zeros.
Bytes random_values(DataType dtype, std::size_t count, std::mt19937_64& random) {
  Bytes bytes(count * size_of(dtype));
  const unsigned mask = dtype == DataType::kBool ? 1 : 0xff;
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & mask);
  std::normal_distribution<double> normal(0.0, 3.0);
  const auto fill = [&]<class T>(T*, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      const T special[] = {T(0), T(-0.0), std::numeric_limits<T>::infinity(),
                           std::numeric_limits<T>::quiet_NaN()};
      const T value = random() % 50 == 0 ? special[random() % 4] : static_cast<T>(normal(random));
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  };
  if (dtype == DataType::kFloat32) fill(static_cast<float*>(nullptr), count);
  if (dtype == DataType::kFloat64) fill(static_cast<double*>(nullptr), count);
  if (dtype == DataType::kComplex64) fill(static_cast<float*>(nullptr), 2 * count);
  if (dtype == DataType::kComplex128) fill(static_cast<double*>(nullptr), 2 * count);
  return bytes;
}

// --- The reference: one element at a time, as the header says it --------------------------------

template <class T>
T combine(ReduceOp op, T a, T b) {
  using U = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                        std::type_identity<T>>::type;
  switch (op) {
    case ReduceOp::kSum:
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    case ReduceOp::kProduct:
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
      }
      return a * b;
    case ReduceOp::kMin:
      return b < a || b != b ? b : a;
    default:
      return a < b || b != b ? b : a;
  }
}

template <class T>
T scale(T value, double factor) {
  if (factor == 1.0) return value;
  if constexpr (std::is_floating_point_v<T>) {
    return value * static_cast<T>(factor);
  } else {
    const double product = std::trunc(static_cast<double>(value) * factor);
    if (product <= static_cast<double>(std::numeric_limits<T>::min()))
      return std::numeric_limits<T>::min();
    if (product >= static_cast<double>(std::numeric_limits<T>::max()))
      return std::numeric_limits<T>::max();
    return static_cast<T>(product);
  }
}

template <class T>
T load(const std::byte* from, std::size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void reference_of(const Reduction& r, const std::vector<Bytes>& sources, Bytes& out,
                  std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T sum = scale(load<T>(sources[0].data(), i), r.prescale);
    for (std::size_t s = 1; s < sources.size(); ++s) {
      sum = combine(r.op, sum, scale(load<T>(sources[s].data(), i), r.prescale));
    }
    sum = scale(sum, r.postscale);
    std::memcpy(out.data() + i * sizeof(T), &sum, sizeof(T));
  }
}

template <float (*widen)(std::uint16_t), std::uint16_t (*narrow)(float)>
void reference_of_half(const Reduction& r, const std::vector<Bytes>& sources, Bytes& out,
                       std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    float sum = scale(widen(load<std::uint16_t>(sources[0].data(), i)), r.prescale);
    for (std::size_t s = 1; s < sources.size(); ++s) {
      const float next = widen(load<std::uint16_t>(sources[s].data(), i));
      sum = combine(r.op, sum, scale(next, r.prescale));
    }
    const std::uint16_t rounded = narrow(scale(sum, r.postscale));
    std::memcpy(out.data() + i * 2, &rounded, 2);
  }
}

void reference_of_bool(const Reduction& r, const std::vector<Bytes>& sources, Bytes& out,
                       std::size_t count) {
  const bool any = r.op == ReduceOp::kSum || r.op == ReduceOp::kMax;
  for (std::size_t i = 0; i < count; ++i) {
    bool result = load<std::uint8_t>(sources[0].data(), i) != 0;
    for (std::size_t s = 1; s < sources.size(); ++s) {
      const bool next = load<std::uint8_t>(sources[s].data(), i) != 0;
      result = any ? result || next : result && next;
    }
    out[i] = static_cast<std::byte>(result);
  }
}

Bytes reference(const Reduction& r, const std::vector<Bytes>& sources, std::size_t count) {
  Bytes out(count * size_of(r.dtype));
  switch (r.dtype) {
    case DataType::kUint8:
      reference_of<std::uint8_t>(r, sources, out, count);
      break;
    case DataType::kInt8:
      reference_of<std::int8_t>(r, sources, out, count);
      break;
    case DataType::kUint16:
      reference_of<std::uint16_t>(r, sources, out, count);
      break;
    case DataType::kInt16:
      reference_of<std::int16_t>(r, sources, out, count);
      break;
    case DataType::kInt32:
      reference_of<std::int32_t>(r, sources, out, count);
      break;
    case DataType::kInt64:
      reference_of<std::int64_t>(r, sources, out, count);
      break;
    case DataType::kFloat32:
      reference_of<float>(r, sources, out, count);
      break;
    case DataType::kFloat64:
      reference_of<double>(r, sources, out, count);
      break;
    case DataType::kComplex64:
      reference_of<float>(r, sources, out, 2 * count);
      break;
    case DataType::kComplex128:
      reference_of<double>(r, sources, out, 2 * count);
      break;
    case DataType::kBool:
      reference_of_bool(r, sources, out, count);
      break;
    case DataType::kFloat16:
      reference_of_half<float16_to_float, float_to_float16>(r, sources, out, count);
      break;
    case DataType::kBfloat16:
      reference_of_half<bfloat16_to_float, float_to_bfloat16>(r, sources, out, count);
      break;
  }
  return out;
}

// NaNs are equal whatever their payload: which operand's payload survives is the compiler's choice.
bool same(DataType dtype, const Bytes& a, const Bytes& b) {
  if (a == b) return true;
  const auto same_floats = [&]<class T>(T, auto is_nan) {
    for (std::size_t i = 0; i < a.size() / sizeof(T); ++i) {
      const T x = load<T>(a.data(), i), y = load<T>(b.data(), i);
      if (std::memcmp(&x, &y, sizeof(T)) != 0 && !(is_nan(x) && is_nan(y))) return false;
    }
    return true;
  };
  const auto plain = [](auto x) { return x != x; };
  switch (dtype) {
    case DataType::kFloat32:
    case DataType::kComplex64:
      return same_floats(float{}, plain);
    case DataType::kFloat64:
    case DataType::kComplex128:
      return same_floats(double{}, plain);
    case DataType::kFloat16:
      return same_floats(std::uint16_t{}, [](auto h) { return std::isnan(float16_to_float(h)); });
    case DataType::kBfloat16:
      return same_floats(std::uint16_t{}, [](auto h) { return std::isnan(bfloat16_to_float(h)); });
    default:
      return false;
  }
}

Bytes run_kernel(const Reduction& r, const std::vector<Bytes>& sources, std::size_t count) {
  std::vector<const std::byte*> pointers;
  for (const Bytes& source : sources) pointers.push_back(source.data());
  Bytes out(count * size_of(r.dtype));
  reduce(r, pointers, count, {out.data(), Store::kOrdinary});
  return out;
}

std::string describe(const Reduction& r, std::size_t sources, std::size_t count) {
  return std::string(name_of(r.dtype)) + " " + std::string(name_of(r.op)) + ", " +
         std::to_string(sources) + " sources of " + std::to_string(count) + ", factors " +
         std::to_string(r.prescale) + " " + std::to_string(r.postscale);
}

}  // namespace

TEST_CASE("float16 converts exactly and rounds to nearest even") {
  CHECK(float_to_float16(1.0f) == 0x3c00);
  CHECK(float_to_float16(65504.0f) == 0x7bff);
  CHECK(float_to_float16(65519.9f) == 0x7bff);
  CHECK(float_to_float16(65520.0f) == 0x7c00);
  CHECK(float_to_float16(-1e30f) == 0xfc00);
  CHECK(float_to_float16(0x1p-24f) == 0x0001);
  CHECK(float_to_float16(0x1p-25f) == 0x0000);    // half way, even below
  CHECK(float_to_float16(0x1.8p-24f) == 0x0002);  // half way, even above
  CHECK(float_to_float16(1.0f + 0x1p-11f) == 0x3c00);
  CHECK(float_to_float16(1.0f + 0x3p-11f) == 0x3c02);
  CHECK(float_to_float16(-0.0f) == 0x8000);
  CHECK(std::isnan(float16_to_float(float_to_float16(std::nanf("")))));
  for (std::uint32_t half = 0; half < 0x10000; ++half) {
    const auto bits = static_cast<std::uint16_t>(half);
    const bool nan = (bits & 0x7fff) > 0x7c00;
    const std::uint16_t expected = nan ? bits | 0x200 : bits;
    if (float_to_float16(float16_to_float(bits)) != expected) FAIL("float16 ", half);
  }
}

TEST_CASE("bfloat16 converts exactly and rounds to nearest even") {
  CHECK(float_to_bfloat16(1.0f) == 0x3f80);
  CHECK(float_to_bfloat16(1.0f + 0x1p-8f) == 0x3f80);
  CHECK(float_to_bfloat16(1.0f + 0x3p-8f) == 0x3f82);
  CHECK(float_to_bfloat16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(std::isnan(bfloat16_to_float(float_to_bfloat16(std::bit_cast<float>(0x7f800001u)))));
  for (std::uint32_t half = 0; half < 0x10000; ++half) {
    const auto bits = static_cast<std::uint16_t>(half);
    const bool nan = (bits & 0x7fff) > 0x7f80;
    const std::uint16_t expected = nan ? bits | 0x40 : bits;
    if (float_to_bfloat16(bfloat16_to_float(bits)) != expected) FAIL("bfloat16 ", half);
  }
}

TEST_CASE("every dtype and op agrees with the reference on every instruction set") {
  const UseBestAgain restore;
  std::mt19937_64 random(7);
  for (int d = 0; d < kDataTypeCount; ++d) {
    const auto dtype = static_cast<DataType>(d);
    for (const ReduceOp op : kOps) {
      if (!supports(op, dtype)) continue;
      for (const std::size_t count : {0, 1, 3, 31, 64, 1000, 5003}) {
        for (const std::size_t sources : {1, 2, 3, 5}) {
          const bool scaled = count % 2 == 1 && dtype != DataType::kBool;
          const Reduction r{dtype, op, scaled ? 0.37 : 1.0, scaled ? -2.6 : 1.0};
          std::vector<Bytes> values;
          for (std::size_t s = 0; s < sources; ++s)
            values.push_back(random_values(dtype, count, random));
          const Bytes expected = reference(r, values, count);
          for (const InstructionSet set : available_sets()) {
            use_instruction_set(set);
            CHECK_MESSAGE(same(dtype, run_kernel(r, values, count), expected),
                          describe(r, sources, count), ", set ", set);
          }
        }
      }
    }
  }
}

TEST_CASE("a sink may be any of the sources, and both kinds of store write the same") {
  std::mt19937_64 random(8);
  for (const DataType dtype : {DataType::kFloat32, DataType::kBfloat16, DataType::kInt8}) {
    for (const std::size_t sources : {1, 2, 4}) {
      const std::size_t count = 5001;
      const Reduction r{dtype, ReduceOp::kSum, 1.0, 1.0};
      std::vector<Bytes> values;
      for (std::size_t s = 0; s < sources; ++s)
        values.push_back(random_values(dtype, count, random));
      const Bytes expected = reference(r, values, count);
      for (std::size_t in_place = 0; in_place < sources; ++in_place) {
        for (const Store store : {Store::kOrdinary, Store::kStreaming}) {
          std::vector<Bytes> copies = values;
          Bytes second(expected.size());
          std::vector<const std::byte*> pointers;
          for (const Bytes& source : copies) pointers.push_back(source.data());
          reduce(r, pointers, count, {copies[in_place].data(), store}, {second.data(), store});
          finish_streaming();
          CHECK(same(dtype, copies[in_place], expected));
          CHECK(second == copies[in_place]);
          copies = values;
          reduce(r, pointers, count, {copies[in_place].data(), store});
          finish_streaming();
          CHECK(same(dtype, copies[in_place], expected));
        }
      }
    }
  }
}

TEST_CASE("the way a tensor is cut into calls does not change a bit") {
  std::mt19937_64 random(9);
  const std::size_t count = 4099;
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16}) {
    const Reduction r{dtype, ReduceOp::kSum, 0.3, 0.7};
    std::vector<Bytes> values;
    for (int s = 0; s < 3; ++s) values.push_back(random_values(dtype, count, random));
    const Bytes whole = run_kernel(r, values, count);
    Bytes parts(whole.size());
    for (std::size_t begin = 0; begin < count;) {
      const std::size_t now = std::min<std::size_t>(1 + random() % 700, count - begin);
      const std::size_t offset = begin * size_of(dtype);
      const std::vector<const std::byte*> pointers{
          values[0].data() + offset, values[1].data() + offset, values[2].data() + offset};
      reduce(r, pointers, now, {parts.data() + offset, Store::kOrdinary});
      begin += now;
    }
    CHECK(parts == whole);
  }
}

TEST_CASE("a missing source counts as zeros") {
  const std::vector<float> values{3.0f, -2.0f};
  std::vector<float> out(2);
  const std::vector<const std::byte*> sources{nullptr,
                                              reinterpret_cast<const std::byte*>(values.data())};
  const Sink sink{reinterpret_cast<std::byte*>(out.data()), Store::kOrdinary};
  reduce({DataType::kFloat32, ReduceOp::kMax, 1.0, 1.0}, sources, 2, sink);
  CHECK(out == std::vector<float>{3.0f, 0.0f});
  reduce({DataType::kFloat32, ReduceOp::kProduct, 2.0, 1.0}, sources, 2, sink);
  CHECK(out[0] == 0.0f);
}

TEST_CASE("integers that are scaled are truncated toward zero and stay in range") {
  const std::vector<std::int32_t> values{7, -7, std::numeric_limits<std::int32_t>::max()};
  std::vector<std::int32_t> out(3);
  const auto* source = reinterpret_cast<const std::byte*>(values.data());
  reduce({DataType::kInt32, ReduceOp::kSum, 1.0, 0.5}, {&source, 1}, 3,
         {reinterpret_cast<std::byte*>(out.data()), Store::kOrdinary});
  CHECK(out == std::vector<std::int32_t>{3, -3, 1073741823});
  reduce({DataType::kInt32, ReduceOp::kSum, 1.0, 3.0}, {&source, 1}, 3,
         {reinterpret_cast<std::byte*>(out.data()), Store::kOrdinary});
  CHECK(out[2] == std::numeric_limits<std::int32_t>::max());
}

TEST_CASE("copies write every byte and no other, wherever both ends lie within a line") {
  const UseBestAgain restore;
  std::mt19937_64 random(10);
  for (const InstructionSet set : available_sets()) {
    use_instruction_set(set);
    for (const Store store : {Store::kOrdinary, Store::kStreaming}) {
      for (int round = 0; round < 200; ++round) {
        const std::size_t bytes = random() % 2000, to_offset = random() % 70,
                          from_offset = random() % 70;
        Bytes from(2200), to(2200, std::byte{0xee});
        for (std::byte& byte : from) byte = static_cast<std::byte>(random());
        copy(to.data() + to_offset, from.data() + from_offset, bytes, store);
        finish_streaming();
        for (std::size_t i = 0; i < to.size(); ++i) {
          const bool inside = i >= to_offset && i < to_offset + bytes;
          const std::byte expected = inside ? from[i - to_offset + from_offset] : std::byte{0xee};
          if (to[i] != expected) FAIL("byte ", i, " of a copy of ", bytes);
        }
      }
    }
  }
}

TEST_CASE("a reduction writes every element and no other, wherever its sinks lie within a line") {
  const UseBestAgain restore;
  std::mt19937_64 random(11);
  for (const InstructionSet set : available_sets()) {
    use_instruction_set(set);
    for (const DataType dtype :
         {DataType::kFloat32, DataType::kBfloat16, DataType::kInt8, DataType::kComplex128}) {
      const Reduction r{dtype, ReduceOp::kSum, 1.0, 1.0};
      const std::size_t size = size_of(dtype);
      for (int round = 0; round < 40; ++round) {
        const std::size_t count = 1 + random() % 3000;
        const std::vector<Bytes> values{random_values(dtype, count, random),
                                        random_values(dtype, count, random)};
        const Bytes expected = reference(r, values, count);
        const std::size_t bytes = count * size;
        const std::size_t first = random() % 80 / size * size;
        const std::size_t second = random() % 80 / size * size;
        Bytes to(2 * (bytes + 200), std::byte{0xee});
        std::byte* const other = to.data() + bytes + 200;
        const std::vector<const std::byte*> sources{values[0].data(), values[1].data()};
        reduce(r, sources, count, {to.data() + first, Store::kOrdinary},
               {other + second, Store::kOrdinary});
        for (const std::byte* at : {to.data() + first, other + second})
          CHECK(same(dtype, Bytes(at, at + bytes), expected));
        for (std::size_t i = 0; i < to.size(); ++i) {
          const bool inside = (i >= first && i < first + bytes) ||
                              (i >= bytes + 200 + second && i < 2 * bytes + 200 + second);
          if (!inside && to[i] != std::byte{0xee}) FAIL("byte ", i, " was written");
        }
      }
    }
  }
}
