//! A host's predictor, which may panic: its engine must not.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sluice_core::{Chosen, Expected, Predictor, Request, Time, WaitReport, Work};

/// Predicts nothing any more once it has panicked.
#[derive(Debug)]
pub(crate) struct Guarded {
    inner: Box<dyn Predictor>,
    panicked: bool,
}

impl Guarded {
    pub(crate) fn boxed(inner: Box<dyn Predictor>) -> Box<dyn Predictor> {
        Box::new(Guarded { inner, panicked: false })
    }

    fn ask<T>(&mut self, otherwise: T, ask: impl FnOnce(&mut dyn Predictor) -> T) -> T {
        if self.panicked {
            return otherwise;
        }
        let inner = &mut *self.inner;
        catch_unwind(AssertUnwindSafe(|| ask(inner))).unwrap_or_else(|_| {
            tracing::error!("a predictor panicked; nothing is predicted by it any more");
            self.panicked = true;
            otherwise
        })
    }
}

impl Predictor for Guarded {
    fn submitted(&mut self, now: Time, request: &Request) {
        self.ask((), |inner| inner.submitted(now, request));
    }

    fn expect(&mut self, now: Time, chosen: &Chosen) -> Option<Expected> {
        self.ask(None, |inner| inner.expect(now, chosen))
    }

    fn parallelism(&self) -> u32 {
        catch_unwind(AssertUnwindSafe(|| self.inner.parallelism())).unwrap_or(1)
    }

    fn served(&mut self, work: &Work) {
        self.ask((), |inner| inner.served(work));
    }

    fn waited(&mut self, wait: &WaitReport) {
        self.ask((), |inner| inner.waited(wait));
    }
}
