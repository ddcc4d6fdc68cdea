//! Bad input that only a cluster can tell: a clear condition, nothing lost, and recovery when it is corrected.

use anyhow::{Result, ensure};
use e2e::{objects::cluster, pg::Pg, space::Space};
use serde_json::json;

use super::{CREATION, SHORT};

/// On a cluster that runs, too: the running instances stay until the image is right.
#[tokio::test]
async fn an_image_that_does_not_exist() -> Result<()> {
    Space::run("bad-image", async |space| {
        let mut wanted = cluster(&space.namespace, "orders", 1);
        wanted.spec.image = Some("registry.local:5000/postgres:nonesuch".to_owned());
        let pg = Pg::create(&space, &wanted).await?;
        let (seen, took) = pg.condition("Degraded", "True ImagePullFailed: ", CREATION).await?;
        space.record("missing image said", took);
        ensure!(seen.contains("nonesuch"), "the condition doesn't name the image: {seen}");
        pg.change(json!({"image": null})).await?;
        pg.ready("ready after the correction", 1, CREATION).await?;
        Ok(())
    })
    .await
}

/// The binaries are of another version than asked for: a condition, no crash loop.
#[tokio::test]
async fn binaries_of_another_version() -> Result<()> {
    Space::run("bad-version", async |space| {
        let mut wanted = cluster(&space.namespace, "orders", 1);
        "18".clone_into(&mut wanted.spec.version);
        wanted.spec.image = Some(e2e::env::image("POSTGRES_IMAGE_17_IN_CLUSTER")?);
        let pg = Pg::create(&space, &wanted).await?;
        let (seen, took) = pg.condition("Degraded", "True VersionMismatch: ", CREATION).await?;
        space.record("wrong binaries said", took);
        ensure!(seen.contains("17") && seen.contains("18"), "the condition doesn't name both versions: {seen}");
        let restarts: i32 = pg.lives().await?.values().map(|life| life.restarts).sum();
        ensure!(restarts == 0, "{restarts} restarts: a crash loop");
        pg.change(json!({"image": null})).await?;
        pg.ready("ready after the correction", 1, CREATION).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_storage_class_that_does_not_exist() -> Result<()> {
    Space::run("bad-storage", async |space| {
        let mut wanted = cluster(&space.namespace, "orders", 1);
        wanted.spec.storage.storage_class_name = Some("nonesuch".to_owned());
        let pg = Pg::create(&space, &wanted).await?;
        let (seen, took) = pg.condition("Degraded", "True VolumePending: ", CREATION).await?;
        space.record("missing storage class said", took);
        ensure!(seen.contains("nonesuch"), "the condition doesn't name the class: {seen}");
        // It can't be changed in place, so the correction is a new cluster of the name.
        pg.delete().await?;
        let again = Pg::create(&space, &cluster(&space.namespace, "orders", 1)).await?;
        again.ready("ready after the correction", 1, CREATION).await?;
        Ok(())
    })
    .await
}

/// A parameter that PostgreSQL refuses from the beginning: said, and recovered from.
#[tokio::test]
async fn a_parameter_refused_at_creation() -> Result<()> {
    Space::run("bad-parameter", async |space| {
        let mut wanted = cluster(&space.namespace, "orders", 1);
        wanted.spec.postgresql.parameters.insert("shared_buffers".to_owned(), "lots".to_owned());
        let pg = Pg::create(&space, &wanted).await?;
        let (seen, took) = pg.condition("Degraded", "True ParameterRefused: ", CREATION).await?;
        space.record("refused parameter said", took);
        ensure!(seen.contains("shared_buffers"), "the condition doesn't name the parameter: {seen}");
        pg.change(json!({"postgresql": {"parameters": {"shared_buffers": "32MB"}}})).await?;
        pg.ready("ready after the correction", 1, CREATION.max(SHORT)).await?;
        Ok(())
    })
    .await
}
