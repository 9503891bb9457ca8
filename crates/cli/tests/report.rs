//! The page of `braid bench report`, in a browser: what is drawn, what is said under the pointer, and
//! that nothing is fetched.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use common::browser::{Browser, chromium};
use common::ok;

/// Results of every kind of plot: maps, lines over requests, latency, repeats, time, verdicts.
fn page(dir: &Path) -> std::path::PathBuf {
    for sub in ["a", "b"] {
        std::fs::create_dir(dir.join(sub)).unwrap();
    }
    let (a, b) = (format!("a={}/a", dir.display()), format!("b={}/b", dir.display()));
    let warm = "--cache warm --repeats 1 --look 0 --out";
    let modes = [
        format!("surface {a} {b} --requests 4K,64K --transfers 64K,256K --at-least 64K {warm}"),
        format!("sweep {a} {b} --requests 4K,16K --streams 1,2 --size 256K {warm}"),
        format!(
            "curve {a} --loads 20,50 --size 1M --time 0.05 --depth 4 --buffered --repeats 1 --out"
        ),
        format!("meta {a} {b} --files 20 --repeats 2 --out"),
        "seeds --models --out".to_owned(),
    ];
    let mut report = vec!["bench".to_owned(), "report".to_owned()];
    for (n, mode) in modes.iter().enumerate() {
        let out = dir.join(format!("{n}.json")).display().to_string();
        let line = format!("bench {mode} {out}");
        ok(&line.split(' ').collect::<Vec<_>>());
        report.push(out);
    }
    let html = dir.join("page.html");
    report.extend(["--html".to_owned(), html.display().to_string()]);
    ok(&report.iter().map(String::as_str).collect::<Vec<_>>());
    html
}

#[test]
fn the_page_is_drawn_says_values_and_asks_the_network_for_nothing() {
    let Some(program) = chromium() else { return };
    let dir = tempfile::tempdir().unwrap();
    let html = page(dir.path());
    let mut browser = Browser::start(program);
    browser.open(&html);
    // Plots are there, have a size, and lie one beside the other.
    let seen = "[...document.querySelectorAll('svg.plot')].map(s => s.getBoundingClientRect())\
                .filter(b => b.width > 200 && b.height > 100).length";
    let plots = browser.value("document.querySelectorAll('svg.plot').length").as_u64().unwrap();
    assert!(plots >= 8, "{plots} plots");
    assert_eq!(browser.value(seen), plots);
    assert!(browser.value("document.querySelectorAll('polyline').length").as_u64() >= Some(6));
    assert!(browser.value("document.querySelectorAll('rect.mark').length").as_u64() >= Some(8));
    assert!(browser.value("document.querySelectorAll('.verdicts tr').length").as_u64() >= Some(20));
    // The value under the pointer is that of the mark, for the first of every plot.
    let shown = "(v => getComputedStyle(v).display == 'none' ? '' : v.textContent)\
                 (document.getElementById('value'))";
    assert_eq!(browser.value(shown), "");
    for plot in 0..plots {
        let mark = format!("document.querySelectorAll('svg.plot')[{plot}].querySelector('.mark')");
        let expected = browser.value(&format!("{mark}.getAttribute('data-value')"));
        assert!(expected.as_str().unwrap().contains(" at "), "{expected}");
        browser.point_at(&mark);
        // Marks may lie on each other: the one on top counts.
        let plotted = format!(
            "[...document.querySelectorAll('svg.plot')[{plot}].querySelectorAll('.mark')]\
             .some(m => m.getAttribute('data-value') == {shown})"
        );
        assert_eq!(browser.value(&plotted), true, "{expected} of plot {plot}");
    }
    // On a screen and on a telephone nothing is too small to read, nor wider than the page.
    let fonts = "Math.min(...[...document.querySelectorAll('body *')].map(e => \
                 parseFloat(getComputedStyle(e).fontSize)))";
    let scales = "Math.min(...[...document.querySelectorAll('svg.plot')]\
                  .map(s => s.getBoundingClientRect().width / s.viewBox.baseVal.width))";
    let fits = "document.documentElement.scrollWidth <= window.innerWidth";
    for width in [1280, 400] {
        browser.resize(width);
        assert!(browser.value(fonts).as_f64() >= Some(12.0), "text at {width}");
        assert!(browser.value(scales).as_f64() >= Some(0.99), "plots at {width}");
        assert_eq!(browser.value(fits), true, "the page at {width}");
    }
    browser.resize(1280);
    browser.point_at("document.querySelector('h1')");
    assert_eq!(browser.value(shown), "");
    styles(&mut browser);
    assert!(
        browser.value("document.querySelector('#verdict').textContent.length").as_u64() > Some(10)
    );
    // Every link of the contents leads to a heading.
    let led = "[...document.querySelectorAll('nav a')].map(a => \
               document.querySelector(a.getAttribute('href'))?.tagName).join()";
    assert_eq!(browser.value(led), "H2,H2,H2,H2,H2");
    assert_eq!(browser.requested, [format!("file://{}", html.display())]);
}

/// In the dark light letters on dark paper, and on paper dark ones on white, without what is of no use there.
fn styles(browser: &mut Browser) {
    let brightness = |browser: &mut Browser, of: &str| {
        let parts = format!(
            "getComputedStyle(document.body).{of}.match(/[0-9]+/g).slice(0, 3).reduce((a, b) => +a + +b, 0) / 3"
        );
        browser.value(&parts).as_f64().unwrap()
    };
    let displayed = |browser: &mut Browser, what: &str| {
        let style = format!("getComputedStyle(document.querySelector('{what}')).display != 'none'");
        browser.value(&style) == true
    };
    for (media, scheme, is_dark) in
        [("", "light", false), ("", "dark", true), ("print", "dark", false)]
    {
        browser.media(media, scheme);
        let (paper, ink) = (brightness(browser, "backgroundColor"), brightness(browser, "color"));
        assert_eq!(
            (ink > 180.0, paper < 60.0),
            (is_dark, is_dark),
            "{media} {scheme}: {ink} on {paper}"
        );
        assert!((ink - paper).abs() > 150.0, "{media} {scheme}: {ink} on {paper}");
        for what in ["nav", "label"] {
            assert_eq!(displayed(browser, what), media != "print", "{what} {media}");
        }
        assert!(displayed(browser, "svg.plot") && displayed(browser, "#verdict"));
    }
    browser.media("", "light");
}

#[test]
fn a_page_that_fetches_something_is_noticed() {
    let Some(program) = chromium() else { return };
    let dir = tempfile::tempdir().unwrap();
    let html = dir.path().join("page.html");
    std::fs::write(&html, "<p>text<img src='http://example.invalid/x.png'>").unwrap();
    let mut browser = Browser::start(program);
    browser.open(&html);
    assert_eq!(browser.requested.len(), 2, "{:?}", browser.requested);
    assert_eq!(browser.requested[1], "http://example.invalid/x.png");
}
