//! The secrets of a cluster: found, restored, or made for the first time.

use k8s_openapi::{api::core::v1::Secret, jiff::Timestamp};

use super::{
    apply::{create, find, keep},
    context::{Context, pair_key},
    error::Error,
};
use crate::k8s::{
    Cluster,
    certificates::{self, Pair, Purpose},
    secrets::{self, Material, Root},
};

/// All secrets of a cluster, as they are from now on.
///
/// # Errors
/// The API server couldn't be asked, or refuses the Secret `<name>-ca`.
pub async fn material(ctx: &Context, cluster: &Cluster) -> Result<Material, Error> {
    let now = (ctx.now)();
    let root = root(ctx, cluster, now).await?;
    let server = pair(ctx, cluster, &root, Purpose::Server, now).await?;
    let replication = pair(ctx, cluster, &root, Purpose::Replication, now).await?;
    Ok(Material { root, server, replication })
}

/// The authority and the passwords. What is remembered wins over what the Secret holds: an edited or deleted Secret comes
/// back as it was. Without a memory, a Secret that makes sense is taken as it is.
async fn root(ctx: &Context, cluster: &Cluster, now: Timestamp) -> Result<Root, Error> {
    let name = cluster.name.ca_secret();
    let live = find(ctx, &ctx.stores.secrets, &cluster.namespace, &name).await?;
    let usable = |root: &Root| match certificates::judge_authority(&root.authority, now) {
        Ok(()) => true,
        Err(unfit) => {
            tracing::warn!(secret = name, "the certificate authority can't be used: {unfit}");
            false
        }
    };
    let remembered = ctx.memory.with(&cluster.uid, |memory| memory.root.clone());
    let found = remembered.or_else(|| secrets::read_root(live.as_deref()?)).filter(usable);
    let root = match found {
        Some(root) => root,
        None => fresh(ctx, cluster, live.as_deref(), now).await?,
    };
    if live.is_none() && ctx.memory.with(&cluster.uid, |memory| memory.root.is_none()) {
        // A cache that is behind must never replace an authority by another.
        create(ctx, cluster, secrets::root_secret(cluster, &root)).await?;
    } else {
        keep(ctx, cluster, &ctx.stores.secrets, secrets::root_secret(cluster, &root)).await?;
    }
    ctx.memory.with(&cluster.uid, |memory| memory.root = Some(root.clone()));
    Ok(root)
}

/// A new authority. Passwords that can still be found somewhere stay: the roles in the database have them.
async fn fresh(ctx: &Context, cluster: &Cluster, live: Option<&Secret>, now: Timestamp) -> Result<Root, Error> {
    let old = live.and_then(secrets::read_root);
    let mut passwords = Vec::new();
    for name in [cluster.name.app_secret(), cluster.name.superuser_secret()] {
        let secret = find(ctx, &ctx.stores.secrets, &cluster.namespace, &name).await?;
        passwords.push(secret.as_deref().and_then(secrets::read_password));
    }
    let mut passwords = passwords.into_iter();
    let mut choose = |kept: Option<&String>| match kept.cloned().or(passwords.next().flatten()) {
        Some(password) => Ok(password),
        None => secrets::password(),
    };
    let app_password = choose(old.as_ref().map(|root| &root.app_password))?;
    let superuser_password = choose(old.as_ref().map(|root| &root.superuser_password))?;
    Ok(Root { authority: certificates::authority(cluster, now)?, app_password, superuser_password })
}

/// A certificate: the one in its Secret if it is still good, else one issued lately, else a new one.
async fn pair(ctx: &Context, cluster: &Cluster, root: &Root, purpose: Purpose, now: Timestamp) -> Result<Pair, Error> {
    let name = secrets::certificate_secret(cluster, purpose);
    let live = find(ctx, &ctx.stores.secrets, &cluster.namespace, &name).await?;
    let live = live.as_deref().and_then(secrets::read_pair);
    let remembered = ctx.memory.with(&cluster.uid, |memory| memory.pairs.get(pair_key(purpose)).cloned());
    for pair in live.into_iter().chain(remembered) {
        match certificates::judge(cluster, &root.authority, purpose, &pair, now) {
            Ok(()) => return Ok(pair),
            Err(unfit) => tracing::info!(secret = name, "issuing a new certificate, {unfit}"),
        }
    }
    let pair = certificates::issue(cluster, &root.authority, purpose, now)?;
    ctx.memory.with(&cluster.uid, |memory| memory.pairs.insert(pair_key(purpose), pair.clone()));
    Ok(pair)
}
