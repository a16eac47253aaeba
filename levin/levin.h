#pragma once

// The whole of Levin in one include.
#include "levin/core/batch.h"
#include "levin/core/each_tensor.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/core/state_dict.h"
#include "levin/core/words.h"
