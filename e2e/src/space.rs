//! A namespace of the kind cluster for one test, and what is kept of it when the test fails.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use futures::FutureExt;
use kube::Client;
use tokio::sync::RwLock;

use crate::{diagnosis, env::target, kind, objects};

/// Held for reading by tests that need the operator to run, for writing by those that stop it.
static OPERATOR: RwLock<()> = RwLock::const_new(());

/// The namespace of one test.
pub struct Space {
    /// A client that may do everything.
    pub client: Client,
    /// The namespace.
    pub namespace: String,
    test: String,
    steps: Mutex<Vec<(String, Duration)>>,
}

impl Space {
    /// Runs `body` in a namespace of its own, beside other tests.
    ///
    /// When it fails, everything about the namespace is written to a folder whose path is printed last. The namespace is
    /// deleted afterwards, which has to end within 60 s; `E2E_KEEP=1` keeps that of a failed test.
    ///
    /// # Errors
    /// The error of `body`, or that the namespace could not be made or deleted.
    pub async fn run<F, Fut>(test: &str, body: F) -> Result<()>
    where
        F: FnOnce(Arc<Self>) -> Fut,
        Fut: Future<Output = Result<()>>,
    {
        let _shared = OPERATOR.read().await;
        Self::run_in(test, body).await
    }

    /// As [`Space::run`], while no other test runs: for tests that stop the operator.
    ///
    /// # Errors
    /// As [`Space::run`].
    pub async fn run_alone<F, Fut>(test: &str, body: F) -> Result<()>
    where
        F: FnOnce(Arc<Self>) -> Fut,
        Fut: Future<Output = Result<()>>,
    {
        let _alone = OPERATOR.write().await;
        Self::run_in(test, body).await
    }

    async fn run_in<F, Fut>(test: &str, body: F) -> Result<()>
    where
        F: FnOnce(Arc<Self>) -> Fut,
        Fut: Future<Output = Result<()>>,
    {
        let client = kind::client().await?;
        kind::operator(&client).await?;
        let namespace = format!("e2e-{test}");
        let space = Arc::new(Self { client, namespace, test: test.to_owned(), steps: Mutex::default() });
        space.delete().await.context("removing what an earlier run left")?;
        objects::create_namespace(&space.client, &space.namespace).await?;
        let outcome = AssertUnwindSafe(body(Arc::clone(&space))).catch_unwind().await;
        let outcome = outcome.unwrap_or_else(|_| Err(anyhow!("the test panicked, see above")));
        if outcome.is_err() {
            diagnosis::report(&space.namespace, &space.folder()).await;
            if std::env::var_os("E2E_KEEP").is_some() {
                println!("the namespace {} is kept", space.namespace);
                return outcome;
            }
        }
        let began = Instant::now();
        let removed = space.delete().await;
        space.record("namespace deleted", began.elapsed());
        space.print();
        outcome.and(removed)
    }

    /// Notes how long a step took.
    pub fn record(&self, step: &str, took: Duration) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push((step.to_owned(), took));
    }

    /// Folder for what is kept of the test.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        target().join("e2e").join(&self.test)
    }

    fn print(&self) {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = steps.iter().map(|(step, took)| format!("  {:>7.2} s  {step}", took.as_secs_f64()));
        println!("{}:\n{}", self.test, lines.collect::<Vec<_>>().join("\n"));
    }

    /// A second namespace of the same test, made anew; the test deletes it.
    ///
    /// # Errors
    /// It can't be made.
    pub async fn beside(&self, suffix: &str) -> Result<Arc<Self>> {
        let namespace = format!("{}-{suffix}", self.namespace);
        objects::delete_namespace(&self.client, &namespace).await?;
        objects::create_namespace(&self.client, &namespace).await?;
        let (client, test) = (self.client.clone(), format!("{}-{suffix}", self.test));
        Ok(Arc::new(Self { client, namespace, test, steps: Mutex::default() }))
    }

    /// Deletes the namespace.
    ///
    /// # Errors
    /// It isn't gone within 60 s.
    pub async fn delete(&self) -> Result<()> {
        objects::delete_namespace(&self.client, &self.namespace).await
    }
}
