// The texts for ranks that disagree: the exact sentence, then what each rank sent.
#include "engine/agreement.h"
#include "negotiation_world.h"
#include "testing.h"

using namespace hvd;
using hvd::samples::allreduce;
using hvd::samples::make_request;

namespace {

// Rank 0 sent `a`, ranks 1 to 3 sent `b`.
std::string text_for(const Request& a, const Request& b) {
  const std::vector<Variant> variants{{std::make_shared<Request>(a), RankSet(0)},
                                      {std::make_shared<Request>(b), RankSet::range(1, 3)}};
  return find_disagreement(variants).value_or("");
}

bool begins_with(const std::string& text, const std::string& start) {
  if (text.rfind(start + "\n", 0) == 0) return true;
  FAIL_CHECK("text is: ", text);
  return false;
}

}  // namespace

TEST_CASE("each difference has its sentence") {
  const Request a = allreduce("x", {2, 3});
  Request b = a;
  SUBCASE("dtype") {
    b.dtype = DataType::kFloat64;
    CHECK(begins_with(text_for(a, b),
                      "Mismatched data types: One rank had type float32, but another rank had type "
                      "float64."));
  }
  SUBCASE("operation") {
    b.kind = Collective::kAllgather;
    CHECK(begins_with(text_for(a, b),
                      "Mismatched operations: One rank did an ALLREDUCE, but another rank did an "
                      "ALLGATHER."));
  }
  SUBCASE("shape") {
    b.shape = {2, 4};
    CHECK(begins_with(
        text_for(a, b),
        "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [2, 3], but "
        "another rank sent a tensor of shape [2, 4]."));
  }
  SUBCASE("factors") {
    b.postscale = 0.5;
    CHECK(begins_with(
        text_for(a, b),
        "Mismatched prescale and/or postscale factors: One rank sent factors (1, 1), but "
        "another rank sent factors (1, 0.5)."));
  }
  SUBCASE("reduction operation") {
    b.op = ReduceOp::kMax;
    CHECK(begins_with(
        text_for(a, b),
        "Mismatched reduction operation: One rank sent reduction op 1, but another rank "
        "sent reduction op 4."));
  }
  SUBCASE("device") {
    b.device = 1;
    CHECK(
        begins_with(text_for(a, b),
                    "Mismatched ALLREDUCE CPU/GPU device selection: One rank specified device CPU, "
                    "but another rank specified device GPU."));
  }
  SUBCASE("group") {
    b = hvd::samples::in_group(b, "g", 2);
    CHECK(begins_with(
        text_for(a, b),
        "Mismatched groups: One rank sent the tensor in no group, but another rank sent "
        "the tensor in group 'g' of 2."));
  }
}

TEST_CASE("allgather and alltoall may differ in the first dimension only") {
  for (const Collective kind : {Collective::kAllgather, Collective::kAlltoall}) {
    const std::string name(name_of(kind));
    const Request a = make_request(kind, "x", {2, 3});
    CHECK(same_signature(a, make_request(kind, "x", {7, 3})));
    CHECK(
        begins_with(text_for(a, make_request(kind, "x", {2})),
                    "Mismatched " + name +
                        " tensor shapes: One rank sent a tensor of rank 2, but another rank sent a "
                        "tensor of rank 1."));
    CHECK(begins_with(text_for(a, make_request(kind, "x", {2, 5})),
                      "Mismatched " + name +
                          " tensor shapes: One rank sent a tensor with dimension 1 equal to 3, but "
                          "another rank sent a tensor with dimension 1 equal to 5."));
  }
}

TEST_CASE("a scalar can't be gathered even when all agree") {
  const std::vector<Variant> all{
      {std::make_shared<Request>(make_request(Collective::kAllgather, "x", {})),
       RankSet::range(0, 2)}};
  CHECK(begins_with(find_disagreement(all).value_or(""),
                    "Process-set rank zero tried to ALLGATHER a rank-zero tensor."));
  const std::vector<Variant> scalars{
      {std::make_shared<Request>(allreduce("x", {})), RankSet::range(0, 2)}};
  CHECK_FALSE(find_disagreement(scalars).has_value());
}

TEST_CASE("broadcast compares roots, and no reduction operation") {
  Request a = make_request(Collective::kBroadcast, "x");
  a.root = 0;
  Request b = a;
  b.op = ReduceOp::kMax;
  CHECK(same_signature(a, b));
  b.root = 2;
  CHECK(begins_with(
      text_for(a, b),
      "Mismatched BROADCAST root ranks: One rank specified root rank 0, but another rank "
      "specified root rank 2."));
}

TEST_CASE("process sets must be the same everywhere") {
  Request a = make_request(Collective::kAddProcessSet, "add", {});
  a.ranks = {0, 1};
  Request b = a;
  b.ranks = {0, 2};
  CHECK(
      begins_with(text_for(a, b),
                  "Attempted to register process set with mismatching values on different ranks."));
  b.ranks = {0};
  CHECK(begins_with(text_for(a, b),
                    "Attempted to register process set with mismatching size on different ranks."));
}

TEST_CASE("the listing says who sent what") {
  Request b = allreduce("grad/w", {2}, 3);
  Request a = b;
  a.shape = {5};
  a.prescale = 0.25;
  const std::string text = text_for(a, b);
  CHECK(
      text.find("\nTensor 'grad/w' of process set 3: rank 0 sent ALLREDUCE, float32, shape [5], op "
                "Sum, factors (0.25, 1); ranks 1-3 sent ALLREDUCE, float32, shape [2], op Sum.") !=
      std::string::npos);
  CHECK(describe(make_request(Collective::kAllgather, "x", {17, 3})) ==
        "ALLGATHER, float32, shape [*, 3]");
}
