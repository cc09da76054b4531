// Replica: the state that is a function of the log alone and therefore equal on all ranks: the
// table of process sets and the response cache. Pure.
//
// Use: `apply` every entry in the order of the log, before anything else looks at that entry.
// Announce a tensor by `find(request)` if that gives an id, else by the full request.
//
// What the engine owes to the protocol:
//  - EvictEntry: what this rank has announced by one of these ids and not seen executed or failed
//  is
//    announced again in full (urgent, if somebody waits for it by now) - except tensors of the
//    global set on a rank that has announced a join: those wait for JoinedEntry, then are announced
//    again.
//  - After a rank has announced a join it announces nothing for the global set until JoinedEntry.
//  - RemoveProcessSetEntry: everything this rank has pending in that set fails with 'Process set
//  has
//    been removed'; cache ids of the set are void without an EvictEntry.
//  - FailEntry: names that are not pending on this rank are ignored.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/name_view.h"
#include "wire/messages.h"

namespace hvd {

class Replica {
 public:
  explicit Replica(Rank world_size);

  // Applies one entry. ExecuteEntry assigns cache ids; EvictEntry drops them; the process-set
  // entries change the table.
  void apply(const LogEntry& entry);

  // The requests of an entry, ids resolved. Call after `apply(entry)`. Stable until evicted (and
  // beyond: the pointers share ownership). The first dimension of allgather and alltoall in them is
  // some rank's, not this one's. nullptr for an id that was never assigned.
  std::vector<std::shared_ptr<const Request>> resolve(const ExecuteEntry& entry) const;

  // The id that stands for exactly this request, if there is one.
  std::optional<CacheId> find(const Request& request) const;
  // The id that stands for some request of this name, whatever its signature.
  std::optional<CacheId> find_name(const NameView& name) const;
  // What an id stands for; nullptr if evicted or unknown.
  std::shared_ptr<const Request> request(CacheId id) const;
  std::size_t cache_size() const { return by_id_.size(); }

  // Members in ascending order, or nullptr when the set does not exist.
  const std::vector<Rank>* members(ProcessSetId id) const;
  const RankSet* member_ranges(ProcessSetId id) const;
  const std::map<ProcessSetId, std::vector<Rank>>& process_sets() const { return sets_; }

 private:
  void assign(CacheId id, const Request& request);
  void evict(CacheId id);
  void remove_set(ProcessSetId id);

  std::map<ProcessSetId, std::vector<Rank>> sets_;
  std::unordered_map<ProcessSetId, RankSet> ranges_;  // of `sets_`
  std::unordered_map<CacheId, std::shared_ptr<const Request>> by_id_;
  std::unordered_map<NameView, CacheId, NameViewHash> by_name_;  // views into `by_id_`
};

}  // namespace hvd
