// How many threads a step should use: all while that pays, one while the machine is too busy.
//
// Threads meet at every phase. When others keep the cores busy, each meeting may wait for a thread
// that is off its core, and alone the step is faster. So: while steps with all threads take about
// as long as the best of them, nothing is tried. When they take much longer, some are run alone,
// and the faster way is kept for a while. Results never depend on it.
#pragma once

class Pace {
 public:
  bool alone() const { return trial_ > 0 ? trial_alone_ : alone_; }

  // One step took so long, in the way that `alone()` said.
  void took(double seconds) {
    double &mean = alone() ? alone_mean_ : all_mean_;
    mean = mean > 0 ? mean + (seconds - mean) / 8 : seconds;
    if (!alone()) best_ = best_ > 0 && best_ < seconds ? best_ * 1.001 : seconds;
    if (trial_ > 0) {
      if (--trial_ == 0) settle();
    } else if (++steps_ >= KEEP && (alone_ || all_mean_ > SLOW * best_)) {
      trial_alone_ = !alone_;
      trial_ = TRIAL;
      (trial_alone_ ? alone_mean_ : all_mean_) = 0;
    }
  }

 private:
  static constexpr int KEEP = 32, TRIAL = 4;
  static constexpr double SLOW = 1.5;

  void settle() {
    alone_ = alone_mean_ < all_mean_;
    if (!alone_) best_ = all_mean_;  // as good as it gets now: a long text is slower too
    steps_ = 0;
  }

  bool alone_ = false, trial_alone_ = false;
  int steps_ = 0, trial_ = 0;
  double all_mean_ = 0, alone_mean_ = 0, best_ = 0;
};
