// Aggregator: what every rank that has a parent does with requests. Merges its own and its
// children's announcements and passes on what is complete in its subtree. Pure: no socket, no
// thread.
//
// Use: `receive` each up message (own and children's), `apply` each log entry right after the
// replica has applied it and before the entry goes to the children, then send what `take` gives, if
// not empty; call `take` again at `next_deadline`. A rank announces each operation once (again in
// full after an EvictEntry, see replica.h) and marks it urgent at most once, after announcing it.
//
// What is announced for the global set before a rank's join is passed on before that join, so the
// root never takes a rank for absent that had announced. A mark is passed on at once, or rides with
// its announcement when that is still held.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "engine/replica.h"
#include "wire/messages.h"

namespace hvd {

class Aggregator {
 public:
  // `subtree`: all ranks below and including this one. Partial announcements are passed on after
  // `hold` so that the root can name who is missing; a leaf never holds. A good `hold` is well
  // below the stall warning time and well above the spread of ranks in a step: a second or so.
  Aggregator(RankSet subtree, std::chrono::nanoseconds hold);
  ~Aggregator();
  Aggregator(Aggregator&&) noexcept;
  Aggregator& operator=(Aggregator&&) noexcept;

  // `replica` resolves cache ids and process sets.
  void receive(const UpMessage& message, const Replica& replica,
               std::chrono::steady_clock::time_point now);

  // What must go to the parent now (may be empty).
  UpMessage take(std::chrono::steady_clock::time_point now);

  // When to call `take` even if nothing arrives; nullopt: never.
  std::optional<std::chrono::steady_clock::time_point> next_deadline() const;

  // Entries of the log that void what is held: evicted ids are dropped, failed names forgotten.
  void apply(const LogEntry& entry, const Replica& replica);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hvd
