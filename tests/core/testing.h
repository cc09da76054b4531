// A small test framework for the core, so that a machine with a compiler alone can run its tests.
//
//   TEST_CASE("what must hold") { CHECK(a == b); SUBCASE("and also") { REQUIRE(c); } }
//
// CHECK notes a failure and goes on; REQUIRE ends the test case. A test case runs once for every leaf
// SUBCASE in it. CHECK may be used from any thread; SUBCASE, REQUIRE and INFO from the test's own.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace hvd::testing {

// --- Values as text ------------------------------------------------------------------------------

template <typename T>
concept Streamable = requires(std::ostream& out, const T& value) { out << value; };

template <typename T>
concept Iterable = requires(const T& value) {
  value.begin();
  value.end();
};

inline std::string text_of(const char* value) { return value; }

template <typename T>
std::string text_of(const T& value) {
  std::ostringstream out;
  out.precision(17);
  if constexpr (std::is_same_v<T, bool>) {
    out << (value ? "true" : "false");
  } else if constexpr (std::is_same_v<T, std::nullptr_t>) {
    out << "nullptr";
  } else if constexpr (std::is_integral_v<T>) {
    out << +value;
  } else if constexpr (std::is_enum_v<T>) {
    out << +static_cast<std::underlying_type_t<T>>(value);
  } else if constexpr (Streamable<T>) {
    out << value;
  } else if constexpr (Iterable<T>) {
    out << "{";
    for (auto it = value.begin(); it != value.end(); ++it) {
      out << (it == value.begin() ? "" : ", ") << text_of(*it);
    }
    out << "}";
  } else {
    out << "(" << sizeof(T) << "-byte value)";
  }
  return out.str();
}

// --- Results -------------------------------------------------------------------------------------

struct Location {
  const char* file;
  int line;
};

struct RequirementFailed {};  // thrown by REQUIRE, caught by the runner

// Counts one assertion; a failed one is printed with the messages in scope and fails the test case.
void report(bool passed, Location where, std::string_view macro, std::string_view expression,
            const std::string& values);
[[noreturn]] void stop_test();

struct Outcome {
  bool passed;
  std::string values;
};

// `Decompose{} <= a == b` parses as `(Decompose{} <= a) == b`, which is how both sides of a comparison
// are seen.
template <typename L>
struct Left {
  const L& left;

  template <typename R, typename Compare>
  Outcome compare(const R& right, const char* symbol, Compare holds) const {
    if (holds(left, right)) return {true, {}};
    return {false, text_of(left) + " " + symbol + " " + text_of(right)};
  }
#define HVD_TESTING_COMPARISON(symbol)                                                             \
  template <typename R>                                                                            \
  Outcome operator symbol(const R& right) const {                                                  \
    return compare(right, #symbol, [](const auto& a, const auto& b) { return bool(a symbol b); }); \
  }
  HVD_TESTING_COMPARISON(==)
  HVD_TESTING_COMPARISON(!=)
  HVD_TESTING_COMPARISON(<)
  HVD_TESTING_COMPARISON(<=)
  HVD_TESTING_COMPARISON(>)
  HVD_TESTING_COMPARISON(>=)
#undef HVD_TESTING_COMPARISON
};

struct Decompose {
  template <typename L>
  Left<L> operator<=(const L& left) const {
    return {left};
  }
};

inline Outcome outcome(Outcome compared) { return compared; }
template <typename L>
Outcome outcome(const Left<L>& single) {
  const bool passed = static_cast<bool>(single.left);
  if constexpr (std::is_same_v<L, bool>) return {passed, {}};
  return {passed, passed ? "" : text_of(single.left)};
}

// --- Test cases ----------------------------------------------------------------------------------

struct Registration {
  Registration(const char* file, int line, std::string name, std::function<void()> body);
};

// Decides whether a SUBCASE is entered in this run of its test case.
class Subcase {
 public:
  Subcase(const char* file, int line, std::string name);
  ~Subcase();
  Subcase(const Subcase&) = delete;
  Subcase& operator=(const Subcase&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  bool entered_;
};

// Text that is printed with every failure while it is in scope.
class ScopedMessage {
 public:
  explicit ScopedMessage(std::string text);
  ~ScopedMessage();
  ScopedMessage(const ScopedMessage&) = delete;
  ScopedMessage& operator=(const ScopedMessage&) = delete;
};

// A message made of parts: `Message() << "rank ", rank` and `Message() << "rank " << rank` are the same.
class Message {
 public:
  template <typename T>
  Message& operator<<(const T& part) {
    text_ += text_of(part);
    return *this;
  }
  template <typename T>
  Message& operator,(const T& part) {
    return *this << part;
  }
  operator std::string() const { return text_; }

 private:
  std::string text_;
};

// Equal up to a relative difference.
class Approx {
 public:
  explicit Approx(double value) : value_(value) {}
  Approx epsilon(double relative) const {
    Approx copy = *this;
    copy.epsilon_ = relative;
    return copy;
  }
  friend bool operator==(double other, const Approx& self) {
    return std::abs(other - self.value_) <=
           self.epsilon_ * std::max(1.0, std::max(std::abs(other), std::abs(self.value_)));
  }
  friend std::ostream& operator<<(std::ostream& out, const Approx& self) {
    return out << "about " << self.value_;
  }

 private:
  double value_;
  double epsilon_ = 1e-5;
};

template <typename Function, typename... Types>
void register_for_types(const char* file, int line, const std::string& name, Function make) {
  int index = 0;
  ((Registration(file, line, name + " #" + std::to_string(index++),
                 make.template operator()<Types>())),
   ...);
}

}  // namespace hvd::testing

#define HVD_TESTING_JOIN_(a, b) a##b
#define HVD_TESTING_JOIN(a, b) HVD_TESTING_JOIN_(a, b)
#define HVD_TESTING_NAME(prefix) HVD_TESTING_JOIN(prefix, __LINE__)

#define TEST_CASE(name)                                                          \
  static void HVD_TESTING_NAME(hvd_test_)();                                     \
  static const ::hvd::testing::Registration HVD_TESTING_NAME(hvd_registration_)( \
      __FILE__, __LINE__, name, &HVD_TESTING_NAME(hvd_test_));                   \
  static void HVD_TESTING_NAME(hvd_test_)()

// One test case per type; inside, `type` names it.
#define TEST_CASE_TEMPLATE(name, type, ...)                                                   \
  template <typename type>                                                                    \
  static void HVD_TESTING_NAME(hvd_test_)();                                                  \
  static const int HVD_TESTING_NAME(hvd_registration_) = [] {                                 \
    const auto make = []<typename T>() -> std::function<void()> {                             \
      return &HVD_TESTING_NAME(hvd_test_)<T>;                                                 \
    };                                                                                        \
    ::hvd::testing::register_for_types<decltype(make), __VA_ARGS__>(__FILE__, __LINE__, name, \
                                                                    make);                    \
    return 0;                                                                                 \
  }();                                                                                        \
  template <typename type>                                                                    \
  static void HVD_TESTING_NAME(hvd_test_)()

#define SUBCASE(name)                                                            \
  if (const ::hvd::testing::Subcase HVD_TESTING_JOIN(hvd_subcase_, __COUNTER__){ \
          __FILE__, __LINE__, ::hvd::testing::Message() << name})

#define HVD_TESTING_ASSERT(macro, stop, wanted, ...)                                    \
  do {                                                                                  \
    const ::hvd::testing::Outcome hvd_outcome =                                         \
        ::hvd::testing::outcome(::hvd::testing::Decompose{} <= __VA_ARGS__);            \
    ::hvd::testing::report(hvd_outcome.passed == (wanted), {__FILE__, __LINE__}, macro, \
                           #__VA_ARGS__, hvd_outcome.values);                           \
    if (stop && hvd_outcome.passed != (wanted)) ::hvd::testing::stop_test();            \
  } while (false)

#define CHECK(...) HVD_TESTING_ASSERT("CHECK", false, true, __VA_ARGS__)
#define CHECK_FALSE(...) HVD_TESTING_ASSERT("CHECK_FALSE", false, false, __VA_ARGS__)
#define REQUIRE(...) HVD_TESTING_ASSERT("REQUIRE", true, true, __VA_ARGS__)
#define REQUIRE_FALSE(...) HVD_TESTING_ASSERT("REQUIRE_FALSE", true, false, __VA_ARGS__)
#define CHECK_EQ(a, b) CHECK((a) == (b))
#define CHECK_NE(a, b) CHECK((a) != (b))
#define CHECK_LT(a, b) CHECK((a) < (b))
#define CHECK_LE(a, b) CHECK((a) <= (b))
#define CHECK_GT(a, b) CHECK((a) > (b))
#define CHECK_GE(a, b) CHECK((a) >= (b))
#define REQUIRE_EQ(a, b) REQUIRE((a) == (b))
#define REQUIRE_NE(a, b) REQUIRE((a) != (b))

#define HVD_TESTING_MESSAGE(...)                        \
  const ::hvd::testing::ScopedMessage HVD_TESTING_JOIN( \
      hvd_message_, __COUNTER__)((::hvd::testing::Message() << __VA_ARGS__))
#define INFO(...) HVD_TESTING_MESSAGE(__VA_ARGS__)
#define CAPTURE(value) HVD_TESTING_MESSAGE(#value " = ", value)

#define CHECK_MESSAGE(condition, ...)                                                             \
  ::hvd::testing::report(static_cast<bool>(condition), {__FILE__, __LINE__}, "CHECK", #condition, \
                         (::hvd::testing::Message() << __VA_ARGS__))
#define REQUIRE_MESSAGE(condition, ...)                                             \
  do {                                                                              \
    const bool hvd_passed = static_cast<bool>(condition);                           \
    ::hvd::testing::report(hvd_passed, {__FILE__, __LINE__}, "REQUIRE", #condition, \
                           (::hvd::testing::Message() << __VA_ARGS__));             \
    if (!hvd_passed) ::hvd::testing::stop_test();                                   \
  } while (false)
#define FAIL_CHECK(...)                                                  \
  ::hvd::testing::report(false, {__FILE__, __LINE__}, "FAIL", "reached", \
                         (::hvd::testing::Message() << __VA_ARGS__))
#define FAIL(...)                \
  do {                           \
    FAIL_CHECK(__VA_ARGS__);     \
    ::hvd::testing::stop_test(); \
  } while (false)

#define CHECK_THROWS_AS(expression, ...)                                                     \
  do {                                                                                       \
    bool hvd_thrown = false;                                                                 \
    try {                                                                                    \
      static_cast<void>(expression);                                                         \
    } catch (const __VA_ARGS__&) {                                                           \
      hvd_thrown = true;                                                                     \
    }                                                                                        \
    ::hvd::testing::report(hvd_thrown, {__FILE__, __LINE__}, "CHECK_THROWS_AS", #expression, \
                           "nothing was thrown");                                            \
  } while (false)
