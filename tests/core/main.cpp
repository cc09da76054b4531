// Runs the test cases of the core: all of them, or those whose "file: name" contains an argument. With
// -v it names each before it runs it.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include "testing.h"

namespace hvd::testing {

namespace {

struct TestCase {
  std::string file;
  int line;
  std::string name;
  std::function<void()> body;
};

// Made on first use: registrations run before main, in no particular order of files.
std::vector<TestCase>& test_cases() {
  static std::vector<TestCase> cases;
  return cases;
}

// What is known about the subcases of the test case that runs. A subcase is named by its path; it is
// done when a run has entered it and no subcase inside it is left to enter.
struct SubcaseRun {
  std::vector<std::string> path;        // the subcases we are in
  std::vector<bool> level_used{false};  // has this run entered a subcase at this depth?
  std::set<std::vector<std::string>> done;
  bool more = false;  // a subcase was passed over: run again
};

SubcaseRun subcases;
std::vector<std::string> messages;
std::mutex print_mutex;
std::atomic<long> assertions{0};
std::atomic<bool> current_failed{false};

void run_once(const TestCase& test) {
  try {
    test.body();
  } catch (const RequirementFailed&) {
    // Already reported; the destructors of subcases have tidied up.
  } catch (const std::exception& error) {
    report(false, {test.file.c_str(), test.line}, "TEST_CASE", test.name,
           std::string("ended by an exception: ") + error.what());
  }
}

bool run(const TestCase& test) {
  subcases = {};
  current_failed = false;
  do {
    subcases.path.clear();
    subcases.level_used.assign(1, false);
    subcases.more = false;
    run_once(test);
  } while (subcases.more);
  return !current_failed;
}

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

bool selected(const TestCase& test, int count, char** patterns) {
  const std::string title = base_name(test.file) + ": " + test.name;
  return count == 0 || std::any_of(patterns, patterns + count, [&](const char* pattern) {
           return title.find(pattern) != std::string::npos;
         });
}

}  // namespace

Registration::Registration(const char* file, int line, std::string name,
                           std::function<void()> body) {
  test_cases().push_back({file, line, std::move(name), std::move(body)});
}

Subcase::Subcase(const char* file, int line, std::string name) : entered_(false) {
  std::vector<std::string> path = subcases.path;
  path.push_back(std::string(file) + ":" + std::to_string(line) + " " + std::move(name));
  if (subcases.done.contains(path)) return;
  const std::size_t depth = subcases.path.size();
  if (subcases.level_used[depth]) {
    subcases.more = true;
    return;
  }
  entered_ = true;
  subcases.level_used[depth] = true;
  subcases.path = std::move(path);
  subcases.level_used.resize(subcases.path.size() + 1, false);
  subcases.level_used[subcases.path.size()] = false;
}

Subcase::~Subcase() {
  if (!entered_) return;
  // Something deeper was passed over: this subcase must be entered again.
  if (!subcases.more) subcases.done.insert(subcases.path);
  subcases.path.pop_back();
}

ScopedMessage::ScopedMessage(std::string text) { messages.push_back(std::move(text)); }

ScopedMessage::~ScopedMessage() { messages.pop_back(); }

void report(bool passed, Location where, std::string_view macro, std::string_view expression,
            const std::string& values) {
  ++assertions;
  if (passed) return;
  current_failed = true;
  const std::lock_guard lock(print_mutex);
  std::fprintf(stderr, "%s:%d: %.*s(%.*s) failed", where.file, where.line,
               static_cast<int>(macro.size()), macro.data(), static_cast<int>(expression.size()),
               expression.data());
  if (!values.empty()) {
    std::fprintf(stderr, ": %s", values.c_str());
  }
  std::fputc('\n', stderr);
  for (const std::string& subcase : subcases.path) {
    std::fprintf(stderr, "    in subcase %s\n", base_name(subcase).c_str());
  }
  for (const std::string& message : messages) std::fprintf(stderr, "    %s\n", message.c_str());
}

void stop_test() { throw RequirementFailed(); }

}  // namespace hvd::testing

int main(int argc, char** argv) {
  using namespace hvd::testing;
  auto& cases = test_cases();
  std::stable_sort(cases.begin(), cases.end(), [](const TestCase& a, const TestCase& b) {
    return std::tie(a.file, a.line) < std::tie(b.file, b.line);
  });
  const bool verbose = argc > 1 && std::string_view(argv[1]) == "-v";
  argv += verbose ? 2 : 1;
  argc -= verbose ? 2 : 1;
  int passed = 0;
  int failed = 0;
  for (const TestCase& test : cases) {
    if (!selected(test, argc, argv)) continue;
    if (verbose) std::fprintf(stderr, "%s: %s\n", base_name(test.file).c_str(), test.name.c_str());
    if (run(test)) {
      ++passed;
    } else {
      ++failed;
      std::fprintf(stderr, "FAILED %s: %s\n", base_name(test.file).c_str(), test.name.c_str());
    }
  }
  std::printf("core: %ld assertions\n%d passed, %d failed\n", assertions.load(), passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
