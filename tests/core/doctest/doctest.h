// Lets tests that were written for doctest run on our own testing.h.
#pragma once

#include "../testing.h"

namespace doctest = hvd::testing;
