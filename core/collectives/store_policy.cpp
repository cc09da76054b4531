// StorePolicy: running averages of the cost of both kinds of store, and when to try the other one.
#include "collectives/store_policy.h"

#include <algorithm>
#include <bit>

namespace hvd {

namespace {

constexpr double kWeight = 0.25;  // of a new sample in the running average
constexpr double kJump = 1.5;     // a cost this much above the average may be a change of place
constexpr int kTrialSamples = 3;  // other ranks may follow one sample late
constexpr int kSoonest = 8;       // samples between trials
constexpr int kLatest = 512;
constexpr double kTrialCost = 0.01;  // share of the time that trials may lose

Store other(Store store) {
  return store == Store::kOrdinary ? Store::kStreaming : Store::kOrdinary;
}

int index(Store store) { return static_cast<int>(store); }

// The dearer the other way was, the rarer it is tried. But that may have been a chance (the first samples
// of a job meet memory that nobody has touched yet), so trials become rare only as they agree.
int next_interval(int last, double best, double other_cost) {
  if (best <= 0 || other_cost <= 0) return kSoonest;
  const double loss = std::max(0.0, other_cost / best - 1.0);
  const int affordable =
      static_cast<int>(std::min(loss * kTrialSamples / kTrialCost, 1.0 * kLatest));
  return std::clamp(std::min(affordable, 2 * last), kSoonest, kLatest);
}

}  // namespace

std::size_t StorePolicy::index_of(std::size_t work_bytes) {
  const std::size_t steps = std::bit_width(work_bytes >> 13);  // below 8 KiB: first bucket
  return std::min(steps, std::tuple_size_v<decltype(buckets_)> - 1);
}

Store StorePolicy::best(std::size_t work_bytes) const {
  const Bucket& now = buckets_[index_of(work_bytes)];
  return now.known ? now.best : latest_;
}

Store StorePolicy::choose(std::size_t work_bytes) {
  Bucket& now = buckets_[index_of(work_bytes)];
  if (!now.known) learn(now, latest_);
  return now.trials > 0 ? other(now.best) : now.best;
}

void StorePolicy::learn(Bucket& bucket, Store store) {
  bucket.known = true;
  bucket.best = store;
  latest_ = store;
}

void StorePolicy::record(std::size_t work_bytes, Store store, std::size_t bytes,
                         double nanoseconds) {
  if (bytes == 0) return;
  Bucket& now = buckets_[index_of(work_bytes)];
  const double sample = nanoseconds / static_cast<double>(bytes);
  double& cost = now.cost[index(store)];
  int& slow_run = now.slow_run[index(store)];
  const bool jumped = cost > 0 && (sample > cost * kJump || sample * kJump < cost);
  slow_run = jumped ? slow_run + 1 : 0;
  // One odd sample is noise; a second one in a row is news, and the old average no longer counts.
  if (cost == 0 || slow_run >= 2) {
    cost = sample;
  } else if (!jumped) {
    cost += kWeight * (sample - cost);
  }

  if (now.trials > 0) {
    if (store != now.best && --now.trials == 0) {
      if (cost < now.cost[index(now.best)]) {
        learn(now, store);
        now.interval = 0;
      }
      now.interval =
          next_interval(now.interval, now.cost[index(now.best)], now.cost[index(other(now.best))]);
      now.until_trial = now.interval;
    }
    return;
  }
  if (slow_run >= 2) now.until_trial = 0;
  if (--now.until_trial <= 0) {
    now.trials = kTrialSamples;
    now.slow_run[index(other(now.best))] =
        1;  // what is known of the other way is old: believe the new
  }
}

void StorePolicy::follow(std::size_t work_bytes, Store store) {
  learn(buckets_[index_of(work_bytes)], store);
}

}  // namespace hvd
