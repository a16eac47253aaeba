#pragma once

// All learning rate schedulers.
#include "levin/optim/composed_schedulers.h"
#include "levin/optim/cosine_schedulers.h"
#include "levin/optim/decay_schedulers.h"
#include "levin/optim/one_cycle.h"
#include "levin/optim/plateau.h"
#include "levin/optim/scheduler.h"
#include "levin/optim/swa_lr.h"
