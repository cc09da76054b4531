// Agreement: comparison of requests and the texts for those that differ.
#include "engine/agreement.h"

#include <algorithm>
#include <charconv>

namespace hvd {

namespace {

constexpr std::size_t kListedVariants = 16;

bool reduces(Collective kind) {
  return kind == Collective::kAllreduce || kind == Collective::kReducescatter;
}

// Kinds whose first dimension is each rank's own affair.
bool has_free_rows(Collective kind) {
  return kind == Collective::kAllgather || kind == Collective::kAlltoall;
}

bool moves_data(Collective kind) { return kind <= Collective::kReducescatter; }

bool same_shape(const Request& a, const Request& b) {
  if (!has_free_rows(a.kind)) return a.shape == b.shape;
  return a.shape.size() == b.shape.size() &&
         (a.shape.empty() || std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1));
}

std::string number(double value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  return {digits, end};
}

std::string factors(const Request& r) {
  return std::string("(").append(number(r.prescale)).append(", ").append(number(r.postscale)) + ")";
}

std::string kind_text(const Request& r) { return std::string(name_of(r.kind)); }

std::string device_text(const Request& r) { return r.device < 0 ? "CPU" : "GPU"; }

std::string group_text(const Request& r) {
  if (r.group.empty()) return "no group";
  return "group '" + r.group + "' of " + std::to_string(r.group_size);
}

std::string compared(const std::string& what, const std::string& verb, const std::string& one,
                     const std::string& other) {
  return "Mismatched " + what + ": One rank " + verb + " " + one + ", but another rank " + verb +
         " " + other + ".";
}

std::string differing_shape(const Request& a, const Request& b) {
  const std::string what = kind_text(a) + " tensor shapes";
  if (!has_free_rows(a.kind)) {
    return compared(what, "sent", "a tensor of shape " + to_string(a.shape),
                    "a tensor of shape " + to_string(b.shape));
  }
  if (a.shape.size() != b.shape.size()) {
    return compared(what, "sent", "a tensor of rank " + std::to_string(a.shape.size()),
                    "a tensor of rank " + std::to_string(b.shape.size()));
  }
  std::size_t d = 1;
  while (a.shape[d] == b.shape[d]) ++d;
  const std::string equal_to = "dimension " + std::to_string(d) + " equal to ";
  return "Mismatched " + what + ": One rank sent a tensor with " + equal_to +
         std::to_string(a.shape[d]) + ", but another rank sent a tensor with " + equal_to +
         std::to_string(b.shape[d]) + ".";
}

std::string differing_sets(const Request& a, const Request& b) {
  if (a.kind == Collective::kRemoveProcessSet) {
    return compared("process sets to remove", "named",
                    "process set " + std::to_string(a.target_set),
                    "process set " + std::to_string(b.target_set));
  }
  const char* what = a.ranks.size() != b.ranks.size() ? "size" : "values";
  return std::string("Attempted to register process set with mismatching ") + what +
         " on different ranks.";
}

// The first difference, in the order in which the specification checks.
std::optional<std::string> difference(const Request& a, const Request& b) {
  if (moves_data(a.kind) && moves_data(b.kind) && a.dtype != b.dtype) {
    return "Mismatched data types: One rank had type " + std::string(name_of(a.dtype)) +
           ", but another rank had type " + std::string(name_of(b.dtype)) + ".";
  }
  if (a.kind != b.kind) {
    return "Mismatched operations: One rank did an " + kind_text(a) + ", but another rank did an " +
           kind_text(b) + ".";
  }
  if (same_signature(a, b)) return std::nullopt;
  if (a.ranks != b.ranks || a.target_set != b.target_set) return differing_sets(a, b);
  if (!same_shape(a, b)) return differing_shape(a, b);
  if (reduces(a.kind) && (a.prescale != b.prescale || a.postscale != b.postscale)) {
    return compared("prescale and/or postscale factors", "sent", "factors " + factors(a),
                    "factors " + factors(b));
  }
  if (reduces(a.kind) && a.op != b.op) {
    return compared("reduction operation", "sent",
                    "reduction op " + std::to_string(static_cast<int>(a.op)),
                    "reduction op " + std::to_string(static_cast<int>(b.op)));
  }
  if (a.kind == Collective::kBroadcast && a.root != b.root) {
    return compared("BROADCAST root ranks", "specified", "root rank " + std::to_string(a.root),
                    "root rank " + std::to_string(b.root));
  }
  if ((a.device < 0) != (b.device < 0)) {
    return compared(kind_text(a) + " CPU/GPU device selection", "specified",
                    "device " + device_text(a), "device " + device_text(b));
  }
  return compared("groups", "sent the tensor in", group_text(a), group_text(b));
}

bool needs_rows(const Request& r) {
  return has_free_rows(r.kind) || r.kind == Collective::kReducescatter;
}

std::string listing(std::span<const Variant> variants) {
  const Request& first = *variants.front().request;
  std::string text = "\nTensor '" + first.name + "'";
  if (first.process_set != kGlobalProcessSet) {
    text += " of process set " + std::to_string(first.process_set);
  }
  text += ": ";
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (i == kListedVariants) return text + "; ...";
    if (i > 0) text += "; ";
    const RankSet& ranks = variants[i].ranks;
    text += ranks.size() == 1 ? "rank " : "ranks ";
    text += to_string(ranks) + " sent " + describe(*variants[i].request);
  }
  return text + ".";
}

}  // namespace

bool same_signature(const Request& a, const Request& b) {
  if (a.kind != b.kind || a.process_set != b.process_set || a.name != b.name) return false;
  if (!moves_data(a.kind)) return a.ranks == b.ranks && a.target_set == b.target_set;
  if (a.dtype != b.dtype || !same_shape(a, b) || (a.device < 0) != (b.device < 0)) return false;
  if (a.group != b.group || a.group_size != b.group_size) return false;
  if (reduces(a.kind)) {
    return a.op == b.op && a.prescale == b.prescale && a.postscale == b.postscale;
  }
  return a.kind != Collective::kBroadcast || a.root == b.root;
}

std::optional<std::string> find_disagreement(std::span<const Variant> variants) {
  const Request& first = *variants.front().request;
  for (const Variant& other : variants.subspan(1)) {
    if (auto text = difference(first, *other.request)) return *text + listing(variants);
  }
  if (needs_rows(first) && first.shape.empty()) {
    return "Process-set rank zero tried to " + kind_text(first) + " a rank-zero tensor." +
           listing(variants);
  }
  return std::nullopt;
}

std::string describe(const Request& r) {
  std::string text = kind_text(r);
  if (r.kind == Collective::kAddProcessSet) {
    return text + " of ranks " + to_string(Shape(r.ranks.begin(), r.ranks.end()));
  }
  if (r.kind == Collective::kRemoveProcessSet) return text + " " + std::to_string(r.target_set);
  if (!moves_data(r.kind)) return text;
  std::string shape = to_string(r.shape);
  if (has_free_rows(r.kind) && !r.shape.empty()) {
    // Ranks with other first dimensions are listed under this request too.
    shape = "[*" + shape.substr(std::to_string(r.shape[0]).size() + 1);
  }
  text += ", " + std::string(name_of(r.dtype)) + ", shape " + shape;
  if (reduces(r.kind)) {
    text += ", op " + std::string(name_of(r.op));
    if (r.prescale != 1.0 || r.postscale != 1.0) text += ", factors " + factors(r);
  }
  if (r.kind == Collective::kBroadcast) text += ", root rank " + std::to_string(r.root);
  if (r.device >= 0) text += ", device GPU";
  if (!r.group.empty()) text += ", " + group_text(r);
  return text;
}

}  // namespace hvd
