// Agreement: do the ranks want the same thing done with a tensor, and if not, who wants what. Pure.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "wire/messages.h"

namespace hvd {

// True when `a` and `b` are the same operation on the same tensor, so that ranks which sent them
// agree and one cache id can stand for both. Only what the kind uses is compared. Not part of it:
// the first dimension of allgather and alltoall (exchanged at execution), which of its GPUs a rank
// uses, and whether the name will come again.
bool same_signature(const Request& a, const Request& b);

// What some ranks sent.
struct Variant {
  std::shared_ptr<const Request> request;
  RankSet ranks;
};

// Why these ranks can't execute the operation together, or nullopt if they can: the sentence of the
// specification, then what each rank sent. `variants` are not empty, their signatures differ, and
// they are in the order in which "one rank" and "another rank" are to be named.
std::optional<std::string> find_disagreement(std::span<const Variant> variants);

// "ALLREDUCE, float32, shape [2, 3], op Sum"
std::string describe(const Request& request);

}  // namespace hvd
