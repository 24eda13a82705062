//! Windows of an engine's statistics that have closed, and who is told of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use sluice_core::{Engine, WindowFeatures};

/// What to do when a window has closed.
pub(crate) struct OnWindow(pub(crate) Box<dyn Fn() + Send + Sync>);

#[derive(Default)]
pub(crate) struct Windows {
    last: ArcSwapOption<WindowFeatures>,
    /// To be called when a window was published.
    on_window: ArcSwapOption<OnWindow>,
    /// The same where the device is watched, if it has served anything.
    on_served: ArcSwapOption<OnWindow>,
}

/// What there is to tell, once the engine was let go: whoever is told may go meanwhile, with all that belongs to it.
#[derive(Clone, Copy, Default)]
pub(crate) struct News {
    closed: bool,
    served: bool,
}

impl News {
    pub(crate) fn is_any(self) -> bool {
        self.closed
    }
}

impl Windows {
    /// What the last window that has closed contained.
    pub(crate) fn last(&self) -> Option<Arc<WindowFeatures>> {
        self.last.load_full()
    }

    pub(crate) fn on_window(&self, call: Option<Arc<OnWindow>>) {
        self.on_window.store(call);
    }

    pub(crate) fn on_served(&self, call: Option<Arc<OnWindow>>) {
        self.on_served.store(call);
    }

    /// Publishes the windows that have closed. For the engine's holder.
    pub(crate) fn publish(&self, engine: &mut Engine, news: &mut News) {
        while let Some(window) = engine.closed_window() {
            self.last.store(Some(Arc::new(window)));
            news.closed = true;
            news.served |= engine.has_served();
        }
    }

    pub(crate) fn tell(&self, news: News) {
        let call = |whom: &ArcSwapOption<OnWindow>, what| {
            if let Some(OnWindow(call)) = whom.load().as_deref()
                && catch_unwind(AssertUnwindSafe(call)).is_err()
            {
                tracing::error!("who was told of {what} panicked");
            }
        };
        if news.closed {
            call(&self.on_window, "a closed window");
        }
        if news.served {
            call(&self.on_served, "what devices have served");
        }
    }
}
