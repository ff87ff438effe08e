#pragma once
#include "millrace/loader/data_plan.h"
#include "millrace/loader/ledger.h"

namespace millrace {

// NOTE [Judging bad rows] Error(bad_data) naming the main reasons and the worst archives when more than `max_share` of
// the distinct rows are bad, judged from 100 on, at the end of a pass of any number; then also when nothing was
// accepted. And when of the rows that came last, from 10,000 on, more than twice this share is bad, at most half of the
// way from it to 1: there are many such parts of the whole, and some are worse by chance.
//   A stripe reads an archive that is bad throughout to its end before it gives a sample, so that such archives come
// early: one of a hundred can make a third of the first rows. Within a pass their mean share has to be too large, too,
// each archive counting alike and the worst of them left out, where there are more than a few and some rows may be bad.
void check_bad_share(const Ledger& ledger, const DataPlan& plan, double max_share, bool pass_ended = false);

}  // namespace millrace
